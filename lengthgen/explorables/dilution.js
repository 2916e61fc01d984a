// Chapter 5: attention spreads as the sequence grows; a law says how much, up to a million tokens.

const FARTHEST = 1 << 20;
const LENGTHS = [16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048, 4096, 16384, 65536, 262144, FARTHEST];
const MEASURED = 1024;

const DILUTION = {
  name: "dilution",
  caption:
    "The thick lines are the law, computed on this page from the trained head alone: no " +
    "sequence is drawn. Dots are measurements of the same head in the frozen results, thin " +
    "lines those of all seeds. Raise the logits, or turn the temperature on, so that they " +
    "grow with the logarithm of the length: both buy length while the target has a margin, " +
    "and cannot help once an alias has taken over. The circle counts random sequences drawn " +
    "here, at the length you choose. Past 512 tokens, 48 offsets of every octave stand for " +
    "all of it.",
  controls: [
    { name: "length", label: "Length", value: 128, values: geometric(16, FARTHEST, 65), show: (v) => `${integer(v)} tokens` },
    { name: "scale", label: "Logits times", value: 1, min: 0.5, max: 3, step: 0.1, show: (v) => v.toFixed(1) },
    { name: "offset", label: "Offset K", value: 2, min: 1, max: 8, show: (v) => `${v} token${v > 1 ? "s" : ""} back` },
    { name: "seed", label: "Seed of the head", value: 0, min: 0, max: 3, show: (v) => String(v) },
    { name: "temperature", label: "Logits times log L / log 16", value: false, check: true },
  ],
  legend: [
    { color: "var(--lx-rotary)", text: "law" },
    { color: "currentColor", dot: true, text: "measured, this head" },
    { color: "currentColor", dot: "hollow", text: "drawn on this page" },
    { color: "var(--lx-muted)", dash: "2 3", text: "attention spread evenly, or chance" },
  ],
  pictures: [
    { name: "attention", title: "Attention on the target", height: 270 },
    { name: "accuracy", title: "Right answers", height: 270 },
  ],
  create: createDilution,
};

function createDilution(api, data) {
  const [EXACT, PER_OCTAVE] = [512, 48];
  const V = data.vocabulary;
  const places = representativeOffsets(FARTHEST, EXACT, PER_OCTAVE);
  const heads = remember((offset, seed) => {
    const head = rotaryHead(data.rotary, seed * data.offsets.length + data.offsets.indexOf(offset));
    return { head, logits: offsetLogits(head.query, head.key, head.frequencies, places.offsets) };
  });
  const measured = Object.fromEntries(["accuracy", "attention"].map((k) => [k, unpack(data.measured[k])]));
  const remedy = unpack(data.remedy.accuracy);
  const factor = (state, length) => state.scale * (state.temperature ? Math.log(length) / Math.log(data.longest) : 1);

  /** Both laws at all lengths, computed in slices: each `yield` is a place to pause. */
  function* laws(logits, readout, state) {
    const weightsAt = (scale, length) => {
      const n = places.offsets.findIndex((D) => D >= length);
      const used = n < 0 ? logits : logits.subarray(0, n * V * V);
      let top = 0; // a common factor changes no softmax
      for (const x of used) if (x > top) top = x;
      return used.map((x) => Math.exp(scale * (x - top)));
    };
    if (!state.temperature) {
      const weights = weightsAt(state.scale, Infinity);
      yield;
      const attention = attentionLaw(weights, V, places, state.offset, LENGTHS);
      yield;
      return { attention, accuracy: accuracyLaw(weights, V, places, state.offset, LENGTHS, readout) };
    }
    const found = { attention: [], accuracy: [] };
    for (const length of LENGTHS) {
      const weights = weightsAt(factor(state, length), length);
      found.attention.push(attentionLaw(weights, V, places, state.offset, [length])[0]);
      found.accuracy.push(accuracyLaw(weights, V, places, state.offset, [length], readout)[0]);
      yield;
    }
    return found;
  }

  /** Measure at the chosen length on random sequences, in short slices of time. */
  let running = 0;
  api.stop = () => {
    cancelAnimationFrame(running);
    api.busy(false);
  };
  function sample(head, state, finished) {
    const { length, offset } = state;
    const [random, times] = [uniform(11), factor(state, length)];
    const scores = new Float64Array(length);
    const found = { n: 0, right: 0, attention: 0 };
    api.busy(true);
    const slice = () => {
      const until = performance.now() + 8;
      while (found.n < 400 && performance.now() < until) {
        const tokens = randomTokens(length, V, random);
        head.scores(tokens, length, scores);
        const weights = softmax(scores.map((x) => times * x));
        const answer = new Float64Array(V);
        head.read(tokens, length, weights, answer);
        found.right += argmax(answer) === tokens[offset];
        found.attention += weights[offset];
        found.n++;
      }
      api.busy(found.n < 400);
      finished(found);
      if (found.n < 400) running = requestAnimationFrame(slice);
    };
    running = requestAnimationFrame(slice);
  }

  let law = null;
  let wanted = "";
  return (state) => {
    api.stop();
    const key = [state.offset, state.seed, state.scale, state.temperature].join();
    if (law?.key === key) return show(state);
    wanted = key;
    const { head, logits } = heads(state.offset, state.seed);
    const work = laws(logits, head.readout, { ...state });
    const slice = () => {
      if (wanted !== key) return;
      const until = performance.now() + 8;
      let step = work.next();
      while (!step.done && performance.now() < until) step = work.next();
      if (!step.done) {
        running = requestAnimationFrame(slice);
        return;
      }
      law = { key, ...step.value };
      api.busy(false);
      api.say(show(api.state));
    };
    api.busy(true);
    running = requestAnimationFrame(slice);
    return "";
  };

  function show(state) {
    const { head } = heads(state.offset, state.seed);
    const at = (values) => {
      const i = Math.min(LENGTHS.length - 2, LENGTHS.findLastIndex((n) => n <= state.length));
      const part = Math.log(state.length / LENGTHS[i]) / Math.log(LENGTHS[i + 1] / LENGTHS[i]);
      return values[i] ** (1 - part) * values[i + 1] ** part;
    };
    const [alpha, accuracy] = [at(law.attention), at(law.accuracy)];
    const picture = (drawn) => {
      paint("attention", state, law.attention, drawn && drawn.attention / drawn.n, number(alpha, 4));
      paint("accuracy", state, law.accuracy, drawn && drawn.right / drawn.n, number(accuracy));
    };
    picture(null);
    if (state.length <= MEASURED) sample(head, state, picture);
    return (
      `At ${integer(state.length)} tokens the law gives the target ${number(alpha, 4)} of the attention and an accuracy of ${number(accuracy)}. ` +
      `Logits are multiplied by ${number(factor(state, state.length))}` +
      `${state.length <= MEASURED ? "." : `; no sequence longer than ${integer(MEASURED)} tokens is drawn here.`}`
    );
  }

  function paint(name, state, values, drawn, now) {
    const isAttention = name === "attention";
    const index = data.offsets.indexOf(state.offset);
    const layers = [
      { type: "band", from: 10, to: data.longest, text: "" },
      { type: "rule", x: state.length, color: "currentColor", width: 0.8, dash: "1 3" },
      isAttention
        ? { type: "line", x: LENGTHS, y: LENGTHS.map((n) => 1 / n), color: "var(--lx-muted)", width: 1, dash: "2 3" }
        : { type: "rule", y: 1 / V, color: "var(--lx-muted)", dash: "2 3" },
    ];
    if (state.scale === 1 && !state.temperature) {
      const all = row(measured[name], index); // (seeds, lengths)
      const seeds = all.shape[0];
      for (let s = 0; s < seeds; s++)
        layers.push({ type: "line", x: data.measured.lengths, y: row(all, s), width: 0.7, opacity: 0.22, color: "var(--lx-rotary)" });
      layers.push({ type: "line", x: LENGTHS, y: values, color: "var(--lx-rotary)", width: 2.4 });
      layers.push({ type: "dots", x: data.measured.lengths, y: row(all, state.seed), r: 2.6 });
    } else {
      layers.push({ type: "line", x: LENGTHS, y: values, color: "var(--lx-rotary)", width: 2.4 });
      if (state.temperature && state.scale === 1 && !isAttention)
        layers.push({ type: "dots", x: data.remedy.lengths, y: row(row(remedy, index), state.seed), r: 2.6 });
    }
    if (drawn !== null) layers.push({ type: "dots", x: [state.length], y: [drawn], r: 5.5, hollow: true });
    plot(api.svgs[name], {
      x: { from: 10, to: FARTHEST, log: true, label: "length (tokens)", ticks: [[16, "16"], [128, "128"], [1024, "1,024"], [16384, "16,384"], [1e6, "10⁶"]] },
      y: isAttention
        ? { from: 1e-6, to: 1.3, log: true, label: "attention weight", ticks: [0, -2, -4, -6].map((p) => [10 ** p, p ? `10${superscript(String(p).replace("-", "−"))}` : "1"]) }
        : { from: 0, to: 1.03, label: "accuracy", ticks: UNIT },
      layers,
      label: `${isAttention ? "attention on the target" : "accuracy"} by length, offset ${state.offset}, logits times ${number(factor(state, state.length))}; the law gives ${now} at ${integer(state.length)} tokens${drawn === null ? "" : `, sequences drawn here ${number(drawn, isAttention ? 4 : 2)}`}`,
    });
  }
}

/** Show the explorable in an element. */
function render(context) {
  return build(DILUTION, context);
}
export default { render };
