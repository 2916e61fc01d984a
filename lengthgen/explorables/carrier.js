// Chapter 4: train the position-only head; see waves align, and what the start decides.

const VIEWS = [32, 64, 128, 256, 512, 1024, 2048];
const MOST_STEPS = 4000;
const LIMIT = 1024;
const LOOKS = {
  late: { width: 1.1, dash: "7 4", opacity: 0.75 },
  early: { width: 1.4, dash: "1.5 3" },
  lateShare: { r: 3.6, hollow: true },
  wrong: { r: 5.5, hollow: true },
};

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
    {
      name: "std",
      label: "Initial scale",
      value: 0.03,
      values: [0.003, 0.01, 0.03, 0.1, 0.3, 0.6, 1, 2, 4],
      off: (s) => s.start === "twin",
    },
    {
      name: "seed",
      label: "Seed",
      value: 1,
      min: 1,
      max: 20,
      off: (s) => s.start === "twin",
    },
    offsetControl(4),
    {
      name: "level",
      label: "Stop at training loss",
      value: 1e-4,
      values: [1e-1, 1e-2, 1e-4, 1e-8, 1e-16, 1e-32],
      show: (v) => `${v < 0.005 ? number(v) : v} nats`,
    },
    timeControl(FRAMES),
    viewControl(128, VIEWS),
    {
      name: "start",
      label: "Start from",
      value: "random",
      options: [
        ["random", "a random draw"],
        ["twin", "a bad twin"],
      ],
    },
    {
      name: "longest",
      label: "Longest training length",
      value: 16,
      min: 10,
      max: 32,
      show: (v) => `${v} tokens`,
      off: (s) => s.start === "twin",
    },
    {
      name: "base",
      label: "Rotary base",
      value: 10000,
      values: [10, 100, 1000, 10000, 100000, 1000000],
      show: integer,
      off: (s) => s.start === "twin",
    },
    {
      name: "count",
      label: "Frequencies",
      value: 16,
      values: [2, 4, 8, 12, 16, 24, 32],
      off: (s) => s.start === "twin",
    },
  ],
  actions: [
    { name: "play", label: "Play", run: (api) => api.play() },
    { name: "twin", label: "Load a bad twin", run: (api) => api.set({ start: "twin", time: 0 }) },
  ],
  adjust: (state) => (state.start === "twin" ? { base: 10000, count: 16, longest: 16 } : {}),
  reset: (api) => api.stop(),
  legend: [
    { color: INK.rotary, text: "this head" },
    { color: "currentColor", dash: "1.5 3", text: "early prediction" },
    { color: "currentColor", dash: "7 4", text: "late prediction (maximum margin)" },
    { color: "currentColor", dot: true, text: "early, in the spectrum" },
    { color: "currentColor", dot: "hollow", text: "late, in the spectrum" },
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

  const wavesOf = remember((count, base) => {
    const waves = { cos: [], sin: [] };
    for (const w of rotaryFrequencies(count, base)) {
      const [cos, sin] = [new Float64Array(LIMIT), new Float64Array(LIMIT)];
      for (let D = 0; D < LIMIT; D++) {
        cos[D] = Math.cos(w * D);
        sin[D] = Math.sin(w * D);
      }
      waves.cos.push(cos);
      waves.sin.push(sin);
    }
    return waves;
  });

  /** Descend once and keep the head at every time of the slider. */
  function train(std, seed, offset, start, longest, base, count, level) {
    const frequencies = rotaryFrequencies(count, base);
    const head =
      start === "twin"
        ? smallestHead(coefficientsOf(twins, offset))
        : drawPositionHead(frequencies, std, seed);
    const lengths = Array.from({ length: longest - 9 }, (_, i) => 10 + i);
    const descent = new PositionDescent(frequencies, offset, head, { lengths });
    const reached = () => descent.logLoss <= Math.log(level);
    const waves = wavesOf(count, base);
    const frames = keepFrames(descent, MOST_STEPS, FRAMES, reached, () => {
      const c = coefficients(descent.head);
      const early = descent.early.coefficients();
      return { c, early, logLoss: descent.logLoss, lost: firstLost(c, waves, offset) };
    });
    return { frequencies, frames, reached: reached() };
  }
  const trained = remember(train, 1);
  addPlayer(api, FRAMES);

  function drawKernel({ offset, view, longest }, { t }, curves, wrong, words) {
    const [values, early, late] = curves;
    plot(api.svgs.kernel, {
      x: places(view, "offset (tokens before the query)"),
      y: { from: -1.15, to: 1.15, label: "kernel / its maximum", ticks: SIGNED },
      layers: [
        mark.band(-0.5, Math.min(longest, view) - 0.5, view < 300 ? "trained offsets" : ""),
        mark.target(offset),
        ...(late ? [mark.line(null, late, undefined, LOOKS.late)] : []),
        mark.line(null, early, undefined, LOOKS.early),
        mark.line(null, values, INK.rotary, { width: 2.2 }),
        ...(view <= 128 ? [mark.dots(null, values, INK.rotary, { r: 2.4 })] : []),
        ...(wrong < 0 ? [] : [mark.dots([wrong], [values[wrong]], undefined, LOOKS.wrong)]),
      ],
      label: `kernel after ${integer(t)} steps: ${words}`,
    });
  }

  function drawWaves({ c, early }, late, frequencies, offset) {
    const index = Array.from(frequencies, (_, f) => f + 1);
    const shown = index.filter((i) => index.length < 9 || i % 2);
    const ticks = index.length > 16 ? undefined : ticksAt(...shown);
    const x = { from: 0.5, to: index.length + 0.5, label: "wave (1 is the fastest)", ticks };
    const shares = amplitudeShares(c);
    const kept = shares.filter((s) => s >= 0.01 * Math.max(...shares)).length;
    plot(api.svgs.spectrum, {
      x,
      y: { from: 0, to: 1, label: "share of amplitude", ticks: UNIT },
      layers: [
        mark.stems(shares, INK.rotary, { x: index }),
        ...(late ? [mark.dots(index, amplitudeShares(late), undefined, LOOKS.lateShare)] : []),
        mark.dots(index, amplitudeShares(early), undefined, { r: 1.8 }),
      ],
      label:
        `${kept} of ${index.length} waves hold ` +
        "at least one hundredth of the largest amplitude",
    });
    const phase = (w, f) => wrap(Math.atan2(c.im[f], c.re[f]) - w * offset) / Math.PI;
    const phases = Float64Array.from(frequencies, phase);
    const size = (f) => ({ r: 1.5 + 7 * Math.sqrt(shares[f]) });
    plot(api.svgs.phases, {
      x,
      y: { from: -1.05, to: 1.05, label: "phase (π rad)", ticks: SIGNED },
      layers: [
        { type: "rule", y: 0, color: MUTED, text: "in phase", dash: "5 4" },
        ...index.map((i, f) => mark.dots([i], [phases[f]], INK.rotary, size(f))),
      ],
      label:
        "phases at the target in units of pi, larger dots for larger amplitudes: " +
        Array.from(phases, (p) => number(p)).join(", "),
    });
  }

  function drawTimes(frames, now, longest) {
    const { t, logLoss, lost } = frames[now];
    const times = frames.map((frame) => Math.max(frame.t, FIRST));
    const last = Math.max(10, frames[frames.length - 1].t);
    const x = { from: FIRST, to: last, log: true, label: "step" };
    const curve = (y) => [
      mark.now(times[now]),
      mark.line(times, y, INK.rotary),
      mark.dots([times[now]], [y[now]], INK.rotary, { r: 4.5 }),
    ];
    const losses = frames.map((frame) => frame.logLoss / Math.LN10);
    const floor = Math.min(-1, Math.floor(Math.min(...losses)));
    const top = Math.max(1, Math.ceil(Math.max(...losses)));
    plot(api.svgs.loss, {
      x,
      y: { from: floor, to: top, label: "log₁₀ of the loss (nats)", ticks: 4 },
      layers: curve(losses),
      label: `training loss ${lossText(logLoss)} nats after ${integer(t)} steps`,
    });
    const reach = frames.map((frame) => Math.max(frame.lost, 1));
    const ticks = ticksAt(1, 16, 128, LIMIT);
    plot(api.svgs.reach, {
      x,
      y: { from: 1, to: LIMIT * 1.3, log: true, label: "length (tokens)", ticks },
      layers: [
        { type: "rule", y: longest, color: MUTED, text: "longest trained", dash: "2 3" },
        ...curve(reach),
      ],
      label: `the target wins at lengths up to ${integer(lost)} of ${integer(LIMIT)} examined`,
    });
  }

  return (state) => {
    const { std, seed, offset, start, longest, base, count, level, view } = state;
    const { frequencies, frames, reached } = trained(
      ...[std, seed, offset, start, longest, base, count, level],
    );
    const now = Math.round((state.time / FRAMES) * (frames.length - 1));
    const { t, c, early, logLoss, lost } = frames[now];
    const standard = base === 10000 && count === 16 && longest === 16;
    const late = standard ? coefficientsOf(best, offset) : null;
    const curves = [c, early, late].map((x) => x && unitKernel(x, frequencies, view));
    const wrong = curves[0].findIndex((x, D) => D !== offset && x >= curves[0][offset]);
    const words =
      (wrong < 0
        ? `the target has the largest logit of ${integer(view)} offsets`
        : `offset ${integer(wrong)} is no worse than the target`) +
      `; alignment ${number(alignment(c, frequencies, offset))}`;
    drawKernel(state, frames[now], curves, wrong, words);
    drawWaves(frames[now], late, frequencies, offset);
    drawTimes(frames, now, longest);
    const wins = lost > offset ? `up to length ${integer(lost)}` : "at no length";
    return (
      `Step ${integer(t)}: training loss ${lossText(logLoss)} nats, ${words}. The target wins ` +
      `${lost === LIMIT ? `at every length up to ${integer(LIMIT)}` : wins}.` +
      (reached ? "" : ` The loss asked for was not reached in ${integer(MOST_STEPS)} steps.`) +
      (late
        ? ""
        : " (The late prediction was computed for base 10,000, 16 waves and training up to " +
          "16 tokens.)")
    );
  };
}

/** `carrier.first_lost_offset` below LIMIT, from tables of the waves. */
function firstLost({ re, im }, { cos, sin }, offset) {
  const values = new Float64Array(LIMIT);
  for (let f = 0; f < re.length; f++) {
    const [a, b, c, s] = [re[f], im[f], cos[f], sin[f]];
    for (let D = 0; D < LIMIT; D++) values[D] += a * c[D] + b * s[D];
  }
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
  const power = Math.floor(logLoss / Math.LN10);
  if (power >= -3) return Math.exp(logLoss).toFixed(3);
  return `${number(10 ** (logLoss / Math.LN10 - power), 1)} × ${power10(power)}`;
}

/** Show the explorable in an element. */
function render(context) {
  return build(CARRIER, context);
}
export default { render };
