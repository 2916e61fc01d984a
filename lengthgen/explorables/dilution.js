// Chapter 5: attention spreads as the sequence grows; a law says how much, up to a million tokens.

const FARTHEST = 1 << 20;
const LENGTHS = [
  16,
  24,
  32,
  48,
  64,
  96,
  128,
  192,
  256,
  384,
  512,
  768,
  1024,
  2048,
  4096,
  16384,
  65536,
  262144,
  FARTHEST,
];
const MEASURED = 1024;
const DRAWN = 400; // random sequences at the chosen length
const DRAWS = 64; // of the accuracy law, for each query token
const SCATTER = 0.5 / Math.sqrt(16 * DRAWS);

const DILUTION = {
  name: "dilution",
  caption:
    "The thick lines are the law, computed on this page from the trained head alone: no " +
    "sequence is drawn (accuracy from few random masses: standard error up to " +
    `${SCATTER.toFixed(3)}; the chapter takes more). Dots are measurements of the same head in ` +
    "the frozen results, thin lines those of all seeds, all of heads as trained: they go when " +
    "logits are multiplied. " +
    "Raise the logits, or turn the temperature on, so that they grow with the logarithm of the " +
    "length: both buy length while the target has a margin, " +
    "and cannot help once an alias has taken over. The circle counts random sequences drawn " +
    "here, at the length you choose. Past 512 tokens, 48 offsets of every octave stand for " +
    "all of it.",
  controls: [
    {
      name: "length",
      label: "Length",
      value: 128,
      values: geometric(16, FARTHEST, 65),
      show: (v) => `${integer(v)} tokens`,
    },
    {
      name: "scale",
      label: "Logits times",
      value: 1,
      min: 0.5,
      max: 3,
      step: 0.1,
      show: (v) => v.toFixed(1),
    },
    offsetControl(2),
    { name: "seed", label: "Seed of the head", value: 0, min: 0, max: 3 },
    { name: "temperature", label: "Logits times log L / log 16", value: false, check: true },
  ],
  legend: [
    { color: INK.rotary, text: "law" },
    { color: "currentColor", dot: true, text: "measured, this head" },
    { color: "currentColor", dot: "hollow", text: "drawn on this page" },
    { color: MUTED, dash: "2 3", text: "attention spread evenly, or chance" },
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
  const spots = representativeOffsets(FARTHEST, EXACT, PER_OCTAVE);
  const heads = remember((offset, seed) => {
    const head = rotaryHead(data.rotary, seed * data.offsets.length + data.offsets.indexOf(offset));
    return { head, logits: offsetLogits(head.query, head.key, head.frequencies, spots.offsets) };
  });
  const measured = Object.fromEntries(
    ["accuracy", "attention"].map((k) => [k, unpack(data.measured[k])]),
  );
  const remedy = unpack(data.remedy.accuracy);
  const factor = (state, length) =>
    state.scale * (state.temperature ? Math.log(length) / Math.log(data.longest) : 1);

  const even = mark.line(
    LENGTHS,
    LENGTHS.map((n) => 1 / n),
    MUTED,
    { width: 1, dash: "2 3" },
  );
  const pictures = {
    attention: {
      words: "attention on the target",
      base: even,
      digits: 4,
      y: {
        ...{ from: 1e-6, to: 1.3, log: true, label: "attention weight" },
        ticks: [0, -2, -4, -6].map((p) => [10 ** p, power10(p)]),
      },
    },
    accuracy: { words: "accuracy", base: mark.chance(V, ""), digits: 2, y: ACCURACY },
  };

  /** Both laws at all lengths, computed in slices: each `yield` is a place to pause. */
  function* laws(state) {
    const { head, logits } = heads(state.offset, state.seed);
    const { readout } = head;
    yield;
    const weightsAt = (scale, length) => {
      const n = spots.offsets.findIndex((D) => D >= length);
      const used = n < 0 ? logits : logits.subarray(0, n * V * V);
      let top = 0; // a common factor changes no softmax
      for (const x of used) if (x > top) top = x;
      return used.map((x) => Math.exp(scale * (x - top)));
    };
    if (!state.temperature) {
      const weights = weightsAt(state.scale, Infinity);
      yield;
      const attention = attentionLaw(weights, V, spots, state.offset, LENGTHS);
      yield;
      return {
        attention,
        accuracy: accuracyLaw(weights, V, spots, state.offset, LENGTHS, readout, DRAWS),
      };
    }
    const found = { attention: [], accuracy: [] };
    for (const length of LENGTHS) {
      const weights = weightsAt(factor(state, length), length);
      found.attention.push(attentionLaw(weights, V, spots, state.offset, [length])[0]);
      found.accuracy.push(accuracyLaw(weights, V, spots, state.offset, [length], readout, DRAWS)[0]);
      yield;
    }
    return found;
  }

  /** Measure at the chosen length on random sequences; `after` hears what was found so far. */
  function sample(head, state, after) {
    const { length, offset } = state;
    const [random, times] = [uniform(11), factor(state, length)];
    const scores = new Float64Array(length);
    const found = { n: 0, right: 0, attention: 0 };
    const step = () => {
      const tokens = randomTokens(length, V, random);
      head.scores(tokens, length, scores);
      const weights = softmax(scores.map((x) => times * x));
      const answer = new Float64Array(V);
      head.read(tokens, length, weights, answer);
      found.right += argmax(answer) === tokens[offset];
      found.attention += weights[offset];
      return ++found.n === DRAWN;
    };
    inSlices(api, step, () => after(found));
  }

  let law = null;
  return (state) => {
    api.stop?.();
    const key = [state.offset, state.seed, state.scale, state.temperature].join();
    if (law?.key === key) return show(state);
    const work = laws({ ...state });
    let part = null;
    const step = () => (part = work.next()).done;
    inSlices(api, step, (finished) => {
      if (!finished) return;
      law = { key, ...part.value };
      api.say(show(api.state));
    });
    return "";
  };

  function show(state) {
    const { length } = state;
    const { head } = heads(state.offset, state.seed);
    const at = (values) => {
      const last = LENGTHS.findLastIndex((n) => n <= length);
      const i = Math.min(LENGTHS.length - 2, last);
      const part = Math.log(length / LENGTHS[i]) / Math.log(LENGTHS[i + 1] / LENGTHS[i]);
      return values[i] ** (1 - part) * values[i + 1] ** part;
    };
    const now = { attention: number(at(law.attention), 4), accuracy: number(at(law.accuracy)) };
    const picture = (drawn) => {
      paint("attention", state, now.attention, drawn && drawn.attention / drawn.n);
      paint("accuracy", state, now.accuracy, drawn && drawn.right / drawn.n);
    };
    picture(null);
    if (length <= MEASURED) sample(head, state, picture);
    return (
      `At ${integer(length)} tokens the law gives the target ${now.attention} of the attention ` +
      `and an accuracy of ${now.accuracy}. ` +
      `Logits are multiplied by ${number(factor(state, length))}` +
      (length <= MEASURED
        ? "."
        : `; no sequence longer than ${integer(MEASURED)} tokens is drawn here.`)
    );
  }

  /** What was measured of these heads and frozen, where the controls ask for what was measured. */
  function frozenLayers(name, { offset, seed, scale, temperature }) {
    const index = data.offsets.indexOf(offset);
    if (scale !== 1 || (temperature && name === "attention")) return [];
    if (temperature)
      return [mark.dots(data.remedy.lengths, row(row(remedy, index), seed), undefined, { r: 2.6 })];
    const all = row(measured[name], index); // (seeds, lengths)
    const seeds = Array.from({ length: all.shape[0] }, (_, s) => row(all, s));
    const faint = { width: 0.7, opacity: 0.22 };
    return [
      ...seeds.map((values) => mark.line(data.measured.lengths, values, INK.rotary, faint)),
      mark.dots(data.measured.lengths, seeds[seed], undefined, { r: 2.6 }),
    ];
  }

  function paint(name, state, now, drawn) {
    const { words, base, digits, y } = pictures[name];
    const { length } = state;
    const ticks = [...ticksAt(16, 128, 1024, 16384), [1e6, power10(6)]];
    const circle = { r: 5.5, hollow: true };
    plot(api.svgs[name], {
      x: { from: 10, to: FARTHEST, log: true, label: "length (tokens)", ticks },
      y,
      layers: [
        mark.band(10, data.longest),
        mark.now(length),
        base,
        mark.line(LENGTHS, law[name], INK.rotary, { width: 2.4 }),
        ...frozenLayers(name, state),
        ...(drawn === null ? [] : [mark.dots([length], [drawn], undefined, circle)]),
      ],
      label:
        `${words} by length, offset ${state.offset}, ` +
        `logits times ${number(factor(state, length))}; ` +
        `the law gives ${now} at ${integer(length)} tokens` +
        (drawn === null ? "" : `, sequences drawn here ${number(drawn, digits)}`),
    });
  }
}

/** Show the explorable in an element. */
function render(context) {
  return build(DILUTION, context);
}
export default { render };
