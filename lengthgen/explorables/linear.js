// Chapter 6: the same waves without softmax; stop descent anywhere and look past the training range.

const REACH = 64;

const LINEAR = {
  name: "linear",
  caption:
    "The linear head uses its kernel as weights. Drag the steps: inside the training range " +
    "(shaded) the weights become a clean spike at the offset, outside they grow. Widen the " +
    "band of frequencies towards π and the trouble goes away. The softmax head has the same " +
    "waves and needs only that the target be largest.",
  controls: [
    { name: "steps", label: "Gradient steps", value: 1000, values: [0, 1, 2, 3, 5, 10, 20, 30, 50, 100, 200, 300, 500, 1000, 2000, 3000, 10000, 100000, 1000000], show: (v) => integer(v) },
    { name: "top", label: "Top of the band of frequencies", value: 0.8, min: 0.5, max: 1, step: 0.05, show: (v) => `${v.toFixed(2)} π` },
    { name: "offset", label: "Offset K", value: 2, min: 1, max: 8, show: (v) => `${v} token${v > 1 ? "s" : ""} back` },
  ],
  legend: [
    { color: "var(--lx-learned)", text: "linear head" },
    { color: "var(--lx-muted)", dash: "5 4", text: "its limit, the least-norm interpolant" },
    { color: "var(--lx-rotary)", text: "softmax head, same waves" },
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
  const walks = remember((top, offset) => new LinearTrajectory(scaledMidpoints(count, top), offset));
  const SAVED = LINEAR.controls[0].values.filter((t) => t <= most);
  const descents = remember((top, offset) => {
    const frequencies = scaledMidpoints(count, top);
    const descent = new PositionDescent(frequencies, offset, drawPositionHead(frequencies, 0.01, 1));
    const kernels = new Map();
    for (let t = 0; t <= most; t++) {
      if (SAVED.includes(t)) kernels.set(t, kernel(coefficients(descent.head), frequencies, REACH));
      if (t < most) descent.step();
    }
    return kernels;
  });
  const accuracies = (weights, offset) => lengths.map((n) => sampledAccuracy(weights, offset, n, vocabulary, 400, 1));

  return ({ steps, top, offset }) => {
    const walk = walks(top, offset);
    const values = kernel(walk.at(steps), walk.frequencies, REACH);
    const limit = kernel(walk.at(Infinity), walk.frequencies, REACH);
    const logits = descents(top, offset).get(Math.min(steps, most));
    const attention = softmax(logits);
    const found = { linear: accuracies(values, offset), limit: accuracies(limit, offset), softmax: accuracies(attention, offset) };
    const at48 = lengths.indexOf(48);
    const inside = (D) => D < walk.span;
    const outside = Math.max(...values.filter((_, D) => !inside(D)).map(Math.abs));
    const band = { type: "band", from: -0.5, to: walk.span - 0.5, text: "trained offsets" };
    const size = [1.2, 2.5, 5, 12, 25, 50].find((s) => s >= outside) || 10 ** Math.ceil(Math.log10(outside));
    const words = `weight ${number(values[offset])} at the target, up to ${number(outside)} beyond the training range`;
    plot(api.svgs.linear, {
      x: { from: -0.5, to: REACH - 0.5, label: "offset (tokens before the query)" },
      y: { from: -size, to: size, label: "weight w" },
      layers: [
        band,
        { type: "rule", x: offset, color: "var(--lx-muted)", dash: "2 3" },
        { type: "line", y: limit, color: "var(--lx-muted)", dash: "5 4", width: 1.2 },
        { type: "stems", y: values, color: "var(--lx-learned)", opacity: 0.35 },
        { type: "dots", y: values, color: "var(--lx-learned)", r: 2.8 },
      ],
      label: `linear head after ${integer(steps)} steps: ${words}`,
    });
    plot(api.svgs.softmax, {
      x: { from: -0.5, to: REACH - 0.5, label: "offset (tokens before the query)" },
      y: { from: 0, to: 1.03, label: "attention weight", ticks: UNIT },
      layers: [{ ...band, text: "" }, { type: "rule", x: offset, color: "var(--lx-muted)", dash: "2 3" }, { type: "stems", y: attention, color: "var(--lx-rotary)" }],
      label: `softmax head after ${integer(Math.min(steps, most))} steps: attention ${number(attention[offset])} on the target at length ${REACH}`,
    });
    plot(api.svgs.accuracy, {
      x: { from: 14, to: REACH + 1, label: "length (tokens)", ticks: [16, 32, 48, 64].map((n) => [n, n]) },
      y: { from: 0, to: 1.03, label: "accuracy", ticks: UNIT },
      layers: [
        { type: "band", from: 14, to: walk.span },
        { type: "rule", y: 1 / vocabulary, text: "chance", color: "var(--lx-muted)", dash: "2 3" },
        { type: "line", x: lengths, y: found.limit, color: "var(--lx-muted)", dash: "5 4", width: 1.2 },
        { type: "line", x: lengths, y: found.softmax, color: "var(--lx-rotary)" },
        { type: "dots", x: lengths, y: found.softmax, color: "var(--lx-rotary)" },
        { type: "line", x: lengths, y: found.linear, color: "var(--lx-learned)" },
        { type: "dots", x: lengths, y: found.linear, color: "var(--lx-learned)" },
      ],
      label: `accuracy at length 48: linear ${number(found.linear[at48])}, its limit ${number(found.limit[at48])}, softmax ${number(found.softmax[at48])}`,
    });
    return (
      `After ${integer(steps)} steps the squared loss is ${number(walk.loss(values, offset), 3)}: ${words}. ` +
      `Accuracy at length 48: linear ${number(found.linear[at48])}, softmax ${number(found.softmax[at48])}` +
      `${steps > most ? ` (after ${integer(most)} steps)` : ""}.`
    );
  };
}

/** Show the explorable in an element. */
function render(context) {
  return build(LINEAR, context);
}
export default { render };
