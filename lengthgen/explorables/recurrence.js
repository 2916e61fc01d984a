// Chapter 9: train a linear recurrent model on this page, and listen where training did not.

const MOST_STEPS = 1500; // as in the experiment
const VIEWS = [32, 64, 128, 256, 512, 1024];

/** The parts of the figure; scales, level and seeds are those of the frozen result. */
function recurrenceSpec({ stds, width, level, n_seeds, longest, limit }) {
  return {
    name: "recurrence",
    caption:
      "A model without attention learns to repeat its input K tokens later: its response should " +
      "be 1 at the offset and 0 at all others, and training shows the shaded ones only. " +
      "From scale 1 it fits, and an echo is left beyond; with some seeds the echo grows. " +
      "Lower the initial scale to 0.03: the same training loss, silence beyond, and as many " +
      "large singular values as the offset counts tokens. From 1.25 most seeds that fit grow " +
      "without bound. " +
      `The last picture has this model (circle) among the ${n_seeds} seeds of the frozen result, ` +
      `trained to a loss of ${number(level)}.`,
    controls: [
      { name: "std", label: "Initial scale", value: 1, values: stds },
      { name: "seed", label: "Seed", value: 3, min: 1, max: 20 },
      offsetControl(2, 4),
      { name: "width", label: "Hidden states", value: width, min: 2, max: 24 },
      {
        name: "level",
        label: "Stop at training loss",
        value: level,
        values: [1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6],
        show: (v) => number(v),
      },
      timeControl(FRAMES),
      viewControl(64, VIEWS),
    ],
    actions: [{ name: "play", label: "Play", run: (api) => api.play() }],
    reset: (api) => api.stop(),
    legend: [
      { color: "var(--lx-accent)", text: "this model" },
      { color: "var(--lx-accent)", dash: "6 4", text: "its largest response beyond the range" },
      { color: "currentColor", dash: "2 3", text: "training loss" },
      { color: MUTED, dot: true, text: "a seed of the frozen result" },
    ],
    pictures: [
      { name: "response", title: "Response: the output by offset", height: 230, wide: true },
      { name: "size", title: `Size of the response, to offset ${integer(limit - 1)}`, height: 210 },
      { name: "descent", title: "While it trains", height: 210 },
      { name: "rank", title: "Singular values of the transition", height: 210 },
      { name: "scales", title: `Largest response from offset ${longest} on`, height: 210 },
    ],
    create: createRecurrence,
  };
}

function createRecurrence(api, data) {
  const { longest, limit, stds } = data;
  const color = "var(--lx-accent)";
  const beyond = (values) => extent(values.subarray(longest).map(Math.abs))[1];
  const powers = (...list) => list.map((p) => [10 ** p, power10(p)]);
  addPlayer(api, FRAMES);

  /** Descend once and keep the model at every time of the slider. */
  const trained = remember((std, seed, offset, width, level) => {
    const descent = new RecurrenceDescent(drawRecurrence(width, std, seed), width, offset);
    const reached = () => descent.loss <= level;
    const frames = keepFrames(descent, MOST_STEPS, FRAMES, reached, () => {
      const { loss, parameters } = descent;
      const values = response(parameters, width, limit);
      return { loss, parameters, values, tail: beyond(values) };
    });
    return { frames, reached: reached() };
  });

  function drawResponse({ offset, view }, values, words) {
    const near = values.subarray(0, view);
    plot(api.svgs.response, {
      x: places(view, "offset (tokens before the query)"),
      y: { from: -1.2, to: 1.2, label: "response h", ticks: SIGNED },
      layers: [
        mark.band(-0.5, longest - 0.5, view < 300 ? "trained offsets" : ""),
        mark.target(offset),
        mark.stems(near, color, { opacity: 0.4 }),
        ...(view <= 128 ? [mark.dots(null, near, color, { r: 2.6 })] : []),
      ],
      label: `response at offsets 0 to ${view - 1}: ${words}`,
    });
    const sizes = values.map((v) => Math.abs(v) || NaN);
    plot(api.svgs.size, {
      x: { from: 0, to: limit, label: "offset (tokens)" },
      y: { from: 1e-16, to: 1e4, log: true, label: "size of h", ticks: powers(-15, -10, -5, 0) },
      layers: [
        mark.band(0, longest),
        { type: "rule", y: 1, color: MUTED, text: "the target's height" },
        mark.line(null, sizes, color, { width: 1.2 }),
      ],
      label: `size of the response to offset ${integer(limit - 1)}: ${words}`,
    });
  }

  function drawDescent(frames, now) {
    const x = frames.map((frame) => Math.max(frame.t, FIRST));
    const [loss, tail] = [frames.map((f) => f.loss), frames.map((f) => f.tail || NaN)];
    plot(api.svgs.descent, {
      x: { from: FIRST, to: Math.max(10, x[x.length - 1]), log: true, label: "step" },
      y: { from: 1e-12, to: 1e4, log: true, label: "size", ticks: powers(-12, -8, -4, 0, 4) },
      layers: [
        mark.now(x[now]),
        mark.line(x, loss, undefined, { dash: "2 3" }),
        mark.line(x, tail, color, { dash: "6 4" }),
        mark.dots([x[now]], [loss[now]], undefined, { r: 3.4 }),
        mark.dots([x[now]], [tail[now]], color, { r: 4.5 }),
      ],
      label:
        `step ${integer(frames[now].t)}: training loss ${number(loss[now], 3)}, ` +
        `largest response beyond the range ${number(frames[now].tail, 3)}`,
    });
  }

  function drawRank({ s, rank }) {
    const x = Array.from(s, (_, i) => i + 1);
    const top = Math.max(1.2, s[0] * 1.15);
    const words = `effective rank ${number(rank)}`;
    plot(api.svgs.rank, {
      x: { from: 0.5, to: x.length + 0.5, label: "singular value, from the largest", ticks: 6 },
      y: { from: 0, to: top, label: "size", ticks: 4 },
      layers: [mark.stems(s, color, { x }), mark.words(top * 0.93, words)],
      label: `${words} of ${x.length}`,
    });
    return words;
  }

  function drawScales({ offset, width, std }, tail) {
    const known = data.tails.find((cell) => cell.offset === offset && cell.width === width);
    const [x, y] = [0, 1].map((i) => (known ? known.dots.map((dot) => dot[i]) : []));
    const edges = { from: stds[0] / 1.5, to: stds[stds.length - 1] * 1.5 };
    const scales = [0.03, 0.1, 0.3, 1].map((v) => [v, v]);
    plot(api.svgs.scales, {
      x: { ...edges, log: true, label: "initial scale", ticks: scales },
      y: {
        from: 1e-21,
        to: 1e31,
        log: true,
        label: "size",
        ticks: powers(-20, -10, 0, 10, 20, 30),
      },
      layers: [
        { type: "rule", y: 1, color: MUTED, dash: "2 3" },
        mark.dots([std], [tail || NaN], color, { r: 5.5, hollow: true }),
        mark.dots(x, y, MUTED, { r: 2.2 }),
        ...(known ? [] : [mark.words(1e-5, "not in the frozen result")]),
      ],
      label:
        `largest response beyond the range by initial scale: this model ${number(tail, 3)} ` +
        `at ${std}, ` +
        (known ? `beside ${x.length} frozen ones` : "none of the frozen ones has this setting"),
    });
  }

  return (state) => {
    const { std, seed, offset, width, level } = state;
    const { frames, reached } = trained(std, seed, offset, width, level);
    const now = Math.round((state.time / FRAMES) * (frames.length - 1));
    const { t, loss, parameters, values, tail } = frames[now];
    const [A] = recurrenceParts(parameters, width);
    const words =
      `${number(values[offset])} at the target, ` +
      `at most ${number(tail, 3)} from offset ${longest} on`;
    drawResponse(state, values, words);
    drawDescent(frames, now);
    const rank = drawRank(effectiveRank(A));
    drawScales(state, tail);
    return (
      `Step ${integer(t)}: training loss ${number(loss, 3)}. The response is ${words}. ` +
      `The transition has ${rank}; its largest eigenvalue has size ${number(spectralRadius(A))}` +
      `${reached ? "." : `. The loss asked for was not reached in ${integer(MOST_STEPS)} steps.`}`
    );
  };
}

/** Show the explorable in an element. */
function render(context) {
  return build(recurrenceSpec(context.model.get("data")), context);
}
export default { render };
