// Chapter 4: train the position-only head on this page; see waves align, and what the start decides.

const VIEWS = [32, 64, 128, 256, 512, 1024, 2048];
const MOST_STEPS = 4000;
const FRAMES = 100; // kept of a run, evenly in the logarithm of the step
const LIMIT = 1024;
const FIRST = 0.6; // where step 0 stands on a logarithmic axis

const CARRIER = {
  name: "carrier",
  caption:
    "Press Play: one head with no tokens descends until its training loss is what you ask " +
    "for. The waves turn into phase at the offset, and most of them fade. Then raise the " +
    "initial scale to 1: the training loss is the same, equivariance is as exact as before, " +
    "and beyond the training range (shaded) a wrong offset wins (circle). With other seeds it " +
    "may win further out; from scale 4 some heads do not reach the loss at all. Now ask for a " +
    "smaller loss: descent mends a bad start, but slowly. A bad twin is the cheapest head with " +
    "the margin 1 in the training range that prefers a wrong offset outside; Play scales it up.",
  controls: [
    { name: "std", label: "Initial scale", value: 0.03, values: [0.003, 0.01, 0.03, 0.1, 0.3, 0.6, 1, 2, 4], show: (v) => String(v), off: (s) => s.start === "twin" },
    { name: "seed", label: "Seed", value: 1, min: 1, max: 20, show: (v) => String(v), off: (s) => s.start === "twin" },
    { name: "offset", label: "Offset K", value: 4, min: 1, max: 8, show: (v) => `${v} token${v > 1 ? "s" : ""} back` },
    { name: "level", label: "Stop at training loss", value: 1e-4, values: [1e-1, 1e-2, 1e-4, 1e-8, 1e-16, 1e-32], show: (v) => `${v < 0.005 ? number(v) : v} nats` },
    { name: "time", label: "Time, on a logarithmic clock", value: FRAMES, min: 0, max: FRAMES, show: (v) => `${v} %` },
    { name: "view", label: "Look as far as offset", value: 128, values: VIEWS, show: (v) => `${integer(v)} tokens` },
    { name: "start", label: "Start from", value: "random", options: [["random", "a random draw"], ["twin", "a bad twin"]] },
    { name: "longest", label: "Longest training length", value: 16, min: 10, max: 32, show: (v) => `${v} tokens`, off: (s) => s.start === "twin" },
    { name: "base", label: "Rotary base", value: 10000, values: [10, 100, 1000, 10000, 100000, 1000000], show: integer, off: (s) => s.start === "twin" },
    { name: "count", label: "Frequencies", value: 16, values: [2, 4, 8, 12, 16, 24, 32], show: (v) => String(v), off: (s) => s.start === "twin" },
  ],
  actions: [
    { name: "play", label: "Play", run: (api) => api.play() },
    { name: "twin", label: "Load a bad twin", run: (api) => api.set({ start: "twin", time: 0 }) },
  ],
  adjust: (state) => (state.start === "twin" ? { base: 10000, count: 16, longest: 16 } : {}),
  reset: (api) => api.stop(),
  legend: [
    { color: "var(--lx-rotary)", text: "this head" },
    { color: "currentColor", dash: "1.5 3", text: "early prediction" },
    { color: "currentColor", dash: "7 4", text: "late prediction (maximum margin)" },
  ],
  pictures: [
    { name: "kernel", title: "Kernel: the logit by offset", height: 250, wide: true },
    { name: "spectrum", title: "Spectrum", height: 200 },
    { name: "phases", title: "Phase of each wave at the target", height: 200 },
    { name: "loss", title: "Training loss", height: 200 },
    { name: "reach", title: "Offsets below which the target wins", height: 200 },
  ],
  create: createCarrier,
};

function createCarrier(api, data) {
  const [best, twins] = ["max_margin", "twins"].map((name) => unpack(data[name]));
  const coefficientsOf = (array, offset) => {
    const pairs = row(array, data.offsets.indexOf(offset));
    const part = (k) => Float64Array.from({ length: pairs.length / 2 }, (_, f) => pairs[2 * f + k]);
    return { re: part(0), im: part(1) };
  };

  /** Descend once and keep the head at every time of the slider. */
  function train(std, seed, offset, start, longest, base, count, level) {
    const frequencies = rotaryFrequencies(count, base);
    const head = start === "twin" ? smallestHead(coefficientsOf(twins, offset)) : drawPositionHead(frequencies, std, seed);
    const lengths = Array.from({ length: longest - 9 }, (_, i) => 10 + i);
    const first = new PositionDescent(frequencies, offset, head, { lengths });
    let steps = 0; // one run to find the end, a second to keep its frames
    for (; steps < MOST_STEPS && first.logLoss > Math.log(level); steps++) first.step();
    const times = [0, ...geometric(1, Math.max(steps, 1), FRAMES)].filter((t) => t <= steps);
    const descent = new PositionDescent(frequencies, offset, head, { lengths });
    const waves = { cos: [], sin: [] };
    for (const w of frequencies)
      for (const name of ["cos", "sin"])
        waves[name].push(Float64Array.from({ length: LIMIT }, (_, D) => Math[name](w * D)));
    const frames = [];
    for (let t = 0; t <= steps; t++) {
      if (t === times[frames.length]) {
        const c = coefficients(descent.head);
        frames.push({ t, c, early: descent.early.coefficients(), logLoss: descent.logLoss, lost: firstLost(c, waves, offset) });
      }
      if (t < steps) descent.step();
    }
    return { frequencies, frames, reached: first.logLoss <= Math.log(level) };
  }
  let run = { key: "" };
  const trained = (...key) => {
    if (run.key !== key.join()) run = { key: key.join(), ...train(...key) };
    return run;
  };

  // ---- play
  let timer = null;
  const button = () => api.root.querySelector('[data-action="play"]');
  api.stop = () => {
    clearTimeout(timer);
    if (timer) button().textContent = "Play";
    timer = null;
  };
  api.play = () => {
    if (timer) return api.stop();
    if (api.still.matches) return api.set({ time: FRAMES }); // no animation was asked for
    button().textContent = "Pause";
    let time = api.state.time === FRAMES ? -1 : api.state.time;
    const next = () => {
      time += 1;
      const last = time === FRAMES;
      api.set({ time }, last);
      if (last) api.stop();
      else timer = setTimeout(next, 80);
    };
    timer = setTimeout(next, 0);
  };

  return (state) => {
    const { offset, view, longest } = state;
    const { frequencies, frames, reached } = trained(state.std, state.seed, offset, state.start, longest, state.base, state.count, state.level);
    const now = Math.round((state.time / FRAMES) * (frames.length - 1));
    const { t, c, early, logLoss, lost } = frames[now];
    const standard = state.base === 10000 && state.count === 16 && longest === 16;
    const late = standard ? coefficientsOf(best, offset) : null;
    const color = "var(--lx-rotary)";

    const curves = [c, early, late].map((x) => x && unitKernel(x, frequencies, view));
    const values = curves[0];
    const wrong = values.findIndex((x, D) => D !== offset && x >= values[offset]);
    const words =
      (wrong < 0 ? `the target has the largest logit of ${integer(view)} offsets` : `offset ${integer(wrong)} is no worse than the target`) +
      `; alignment ${number(alignment(c, frequencies, offset))}`;
    plot(api.svgs.kernel, {
      x: { from: -0.5, to: view - 0.5, label: "offset (tokens before the query)" },
      y: { from: -1.15, to: 1.15, label: "kernel / its maximum", ticks: [[-1, "−1"], [0, "0"], [1, "1"]] },
      layers: [
        { type: "band", from: -0.5, to: Math.min(longest, view) - 0.5, text: view < 300 ? "trained offsets" : "" },
        { type: "rule", x: offset, color: "var(--lx-muted)", dash: "2 3" },
        ...(late ? [{ type: "line", y: curves[2], width: 1.1, dash: "7 4", opacity: 0.75 }] : []),
        { type: "line", y: curves[1], width: 1.4, dash: "1.5 3" },
        { type: "line", y: values, color, width: 2.2 },
        ...(view <= 128 ? [{ type: "dots", y: values, color, r: 2.4 }] : []),
        ...(wrong < 0 ? [] : [{ type: "dots", x: [wrong], y: [values[wrong]], r: 5.5, hollow: true }]),
      ],
      label: `kernel after ${integer(t)} steps: ${words}`,
    });

    const index = Array.from(frequencies, (_, f) => f + 1);
    const x = { from: 0.5, to: index.length + 0.5, label: "wave (1 is the fastest)", ticks: index.length > 16 ? undefined : index.filter((i) => index.length < 9 || i % 2).map((i) => [i, i]) };
    const shares = amplitudeShares(c);
    const kept = shares.filter((s) => s >= 0.01 * Math.max(...shares)).length;
    plot(api.svgs.spectrum, {
      x,
      y: { from: 0, to: 1, label: "share of amplitude", ticks: UNIT },
      layers: [
        { type: "stems", x: index, y: shares, color },
        ...(late ? [{ type: "dots", x: index, y: amplitudeShares(late), r: 3.6, hollow: true }] : []),
        { type: "dots", x: index, y: amplitudeShares(early), r: 1.8 },
      ],
      label: `${kept} of ${index.length} waves hold at least one hundredth of the largest amplitude`,
    });
    const phases = Float64Array.from(frequencies, (w, f) => wrap(Math.atan2(c.im[f], c.re[f]) - w * offset) / Math.PI);
    plot(api.svgs.phases, {
      x,
      y: { from: -1.05, to: 1.05, label: "phase (π rad)", ticks: [[-1, "−1"], [0, "0"], [1, "1"]] },
      layers: [
        { type: "rule", y: 0, color: "var(--lx-muted)", text: "in phase", dash: "5 4" },
        ...index.map((i, f) => ({ type: "dots", x: [i], y: [phases[f]], color, r: 1.5 + 7 * Math.sqrt(shares[f]) })),
      ],
      label: `phases at the target in units of pi, larger dots for larger amplitudes: ${Array.from(phases, (p) => number(p)).join(", ")}`,
    });

    const last = Math.max(10, frames[frames.length - 1].t);
    const time = { from: FIRST, to: last, log: true, label: "step" };
    const times = frames.map((frame) => Math.max(frame.t, FIRST));
    const marker = { type: "rule", x: times[now], color: "currentColor", width: 0.9, dash: "1 3" };
    const losses = frames.map((frame) => frame.logLoss / Math.LN10);
    const floor = Math.min(-1, Math.floor(Math.min(...losses)));
    plot(api.svgs.loss, {
      x: time,
      y: { from: floor, to: Math.max(1, Math.ceil(Math.max(...losses))), label: "log₁₀ of the loss (nats)", ticks: 4 },
      layers: [marker, { type: "line", x: times, y: losses, color }, { type: "dots", x: [times[now]], y: [losses[now]], color, r: 4.5 }],
      label: `training loss ${lossText(logLoss)} nats after ${integer(t)} steps`,
    });
    const reach = frames.map((frame) => Math.max(frame.lost, 1));
    plot(api.svgs.reach, {
      x: time,
      y: { from: 1, to: LIMIT * 1.3, log: true, label: "length (tokens)", ticks: [1, 16, 128, LIMIT].map((n) => [n, integer(n)]) },
      layers: [
        marker,
        { type: "rule", y: longest, color: "var(--lx-muted)", text: "longest trained", dash: "2 3" },
        { type: "line", x: times, y: reach, color },
        { type: "dots", x: [times[now]], y: [reach[now]], color, r: 4.5 },
      ],
      label: `the target wins at lengths up to ${integer(lost)} of ${integer(LIMIT)} examined`,
    });
    return (
      `Step ${integer(t)}: training loss ${lossText(logLoss)} nats, ${words}. ` +
      `The target wins ${lost === LIMIT ? `at every length up to ${integer(LIMIT)}` : lost > offset ? `up to length ${integer(lost)}` : "at no length"}.` +
      (reached ? "" : ` The loss asked for was not reached in ${integer(MOST_STEPS)} steps.`) +
      (late ? "" : " (The late prediction was computed for base 10,000, 16 waves and training up to 16 tokens.)")
    );
  };
}

/** `carrier.first_lost_offset` below LIMIT, from tables of the waves. */
function firstLost({ re, im }, { cos, sin }, offset) {
  const values = new Float64Array(LIMIT);
  for (let f = 0; f < re.length; f++)
    for (let D = 0; D < LIMIT; D++) values[D] += re[f] * cos[f][D] + im[f] * sin[f][D];
  const lost = values.findIndex((x, D) => D !== offset && x >= values[offset]);
  return lost < 0 ? LIMIT : lost;
}

/** The kernel less its mean, over its largest value. */
function unitKernel(c, frequencies, n) {
  const values = kernel(c, frequencies, n);
  const mean = values.reduce((sum, x) => sum + x, 0) / n;
  const size = Math.max(...values.map((x) => Math.abs(x - mean))) || 1;
  return values.map((x) => (x - mean) / size);
}

function amplitudeShares({ re, im }) {
  const sizes = re.map((x, f) => Math.hypot(x, im[f]));
  const total = sizes.reduce((sum, x) => sum + x, 0) || 1;
  return sizes.map((x) => x / total);
}

function wrap(angle) {
  return angle - 2 * Math.PI * Math.round(angle / (2 * Math.PI));
}

function lossText(logLoss) {
  const power = logLoss / Math.LN10;
  return power > -3 ? Math.exp(logLoss).toFixed(3) : number(10 ** (power - Math.floor(power)), 1) + ` × 10${superscript(String(Math.floor(power)).replace("-", "−"))}`;
}

/** Show the explorable in an element. */
function render(context) {
  return build(CARRIER, context);
}
export default { render };
