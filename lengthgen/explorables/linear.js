// Chapter 6: the same waves without softmax; stop descent anywhere, look past the training range.

const REACH = 64;
const THIN = { dash: "5 4", width: 1.2 };

const LINEAR = {
  name: "linear",
  caption:
    "The linear head uses its kernel as weights. Drag the steps: inside the training range " +
    "(shaded) the weights become a clean spike at the offset, outside they grow. Widen the " +
    "band of frequencies towards π and the trouble goes away. The softmax head has the same " +
    "waves and needs only that the target be largest.",
  controls: [
    {
      name: "steps",
      label: "Gradient steps",
      value: 1000,
      values: [
        0, 1, 2, 3, 5, 10, 20, 30, 50, 100, 200, 300, 500, 1000, 2000, 3000, 10000, 100000, 1000000,
      ],
      show: (v) => integer(v),
    },
    {
      name: "top",
      label: "Top of the band of frequencies",
      value: 0.8,
      min: 0.5,
      max: 1,
      step: 0.05,
      show: (v) => `${v.toFixed(2)} π`,
    },
    offsetControl(2),
  ],
  legend: [
    { color: INK.learned, text: "linear head" },
    { color: MUTED, dash: "5 4", text: "its limit, the least-norm interpolant" },
    { color: INK.rotary, text: "softmax head, same waves" },
  ],
  pictures: [
    { name: "linear", title: "Linear head: weight by offset", height: 230, wide: true },
    { name: "softmax", title: "Softmax head: attention at length 64", height: 220 },
    { name: "accuracy", title: "Right answers", height: 220 },
  ],
  create: createLinear,
};

function createLinear(api, data) {
  const { count, vocabulary, softmax_steps: most } = data;
  const lengths = [16, 20, 24, 32, 40, 48, 56, 64];
  const walks = remember(
    (top, offset) => new LinearTrajectory(scaledMidpoints(count, top), offset),
  );
  const SAVED = LINEAR.controls[0].values.filter((t) => t <= most);
  const descents = remember((top, offset) => {
    const frequencies = scaledMidpoints(count, top);
    const descent = new PositionDescent(
      frequencies,
      offset,
      drawPositionHead(frequencies, 0.01, 1),
    );
    const kernels = new Map();
    for (let t = 0; t <= most; t++) {
      if (SAVED.includes(t)) kernels.set(t, kernel(coefficients(descent.head), frequencies, REACH));
      if (t < most) descent.step();
    }
    return kernels;
  });
  const accuracies = (weights, offset) =>
    lengths.map((n) => sampledAccuracy(weights, offset, n, vocabulary, 400, 1));

  function drawKernel(steps, offset, span, values, limit, outside, words) {
    const size =
      [1.2, 2.5, 5, 12, 25, 50].find((s) => s >= outside) || 10 ** Math.ceil(Math.log10(outside));
    plot(api.svgs.linear, {
      x: places(REACH, "offset (tokens before the query)"),
      y: { from: -size, to: size, label: "weight w" },
      layers: [
        mark.band(-0.5, span - 0.5, "trained offsets"),
        mark.target(offset),
        mark.line(null, limit, MUTED, THIN),
        mark.stems(values, INK.learned, { opacity: 0.35 }),
        mark.dots(null, values, INK.learned, { r: 2.8 }),
      ],
      label: `linear head after ${integer(steps)} steps: ${words}`,
    });
  }

  function drawSoftmax(steps, offset, span, attention) {
    plot(api.svgs.softmax, {
      x: places(REACH, "offset (tokens before the query)"),
      y: { ...ACCURACY, label: "attention weight" },
      layers: [mark.band(-0.5, span - 0.5), mark.target(offset), mark.stems(attention, INK.rotary)],
      label:
        `softmax head after ${integer(steps)} steps: attention ` +
        `${number(attention[offset])} on the target at length ${REACH}`,
    });
  }

  function drawAccuracy(span, { linear, limit, softmax }) {
    const at48 = (values) => number(values[lengths.indexOf(48)]);
    plot(api.svgs.accuracy, {
      x: { from: 14, to: REACH + 1, label: "length (tokens)", ticks: ticksAt(16, 32, 48, 64) },
      y: ACCURACY,
      layers: [
        mark.band(14, span),
        mark.chance(vocabulary),
        mark.line(lengths, limit, MUTED, THIN),
        mark.line(lengths, softmax, INK.rotary),
        mark.dots(lengths, softmax, INK.rotary),
        mark.line(lengths, linear, INK.learned),
        mark.dots(lengths, linear, INK.learned),
      ],
      label:
        `accuracy at length 48: linear ${at48(linear)}, ` +
        `its limit ${at48(limit)}, softmax ${at48(softmax)}`,
    });
    return `linear ${at48(linear)}, softmax ${at48(softmax)}`;
  }

  return ({ steps, top, offset }) => {
    const walk = walks(top, offset);
    const values = kernel(walk.at(steps), walk.frequencies, REACH);
    const limit = kernel(walk.at(Infinity), walk.frequencies, REACH);
    const trained = Math.min(steps, most);
    const attention = softmax(descents(top, offset).get(trained));
    const outside = Math.max(...values.subarray(walk.span).map(Math.abs));
    const words =
      `weight ${number(values[offset])} at the target, ` +
      `up to ${number(outside)} beyond the training range`;
    drawKernel(steps, offset, walk.span, values, limit, outside, words);
    drawSoftmax(trained, offset, walk.span, attention);
    const found = drawAccuracy(walk.span, {
      linear: accuracies(values, offset),
      limit: accuracies(limit, offset),
      softmax: accuracies(attention, offset),
    });
    return (
      `After ${integer(steps)} steps the squared loss is ` +
      `${number(walk.loss(values, offset), 3)}: ${words}. Accuracy at length 48: ${found}` +
      `${steps > most ? ` (after ${integer(most)} steps)` : ""}.`
    );
  };
}

/** Show the explorable in an element. */
function render(context) {
  return build(LINEAR, context);
}
export default { render };
