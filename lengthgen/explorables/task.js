// Chapter 1: one sequence, two heads; where each looks, what it answers, and how often it is right.

const LETTERS = "abcdefghijklmnop";
const TYPED = 24;
const ENOUGH = 2000;

/** The sequence counted backwards from the query: the typed letters, then random ones. */
function shownTokens({ tail, seed, length }) {
  const tokens = randomTokens(length, LETTERS.length, uniform(1000 + seed));
  const typed = [...tail.toLowerCase()].filter((c) => LETTERS.includes(c)).reverse();
  typed.slice(0, length).forEach((c, D) => (tokens[D] = LETTERS.indexOf(c)));
  return tokens;
}

const lettersOf = (tokens) => Array.from(tokens, (t) => LETTERS[t]);

const TASK = {
  name: "task",
  caption:
    "Both heads were trained on 10 to 16 tokens (shaded). Type other letters, then drag the " +
    "length past 16: the rotary head keeps looking at the target (dashed), the learned head " +
    "keeps looking where the target used to be. The lower picture counts right answers over " +
    "random sequences drawn on this page: circles are these two heads, lines the mean of all " +
    "seeds in the frozen results.",
  controls: [
    { name: "length", label: "Length", value: 16, min: 10, max: 512, show: (v) => `${v} tokens` },
    { name: "offset", label: "Offset K", value: 2, min: 1, max: 8, show: (v) => `${v} token${v > 1 ? "s" : ""} back` },
    { name: "tail", label: `Last tokens (letters a to p)`, value: "", letters: TYPED, text: (s) => lettersOf(shownTokens(s)).slice(0, TYPED).reverse().join("") },
    { name: "seed", label: "Sequence", value: 1, min: 1, max: 50, show: (v) => `number ${v}` },
  ],
  actions: [{ name: "shuffle", label: "Shuffle", run: ({ set, state }) => set({ seed: (state.seed % 50) + 1, tail: "" }) }],
  legend: [
    { color: "var(--lx-rotary)", text: "rotary" },
    { color: "var(--lx-learned)", text: "learned absolute" },
  ],
  pictures: [
    { name: "rotary", title: "Rotary", height: 210 },
    { name: "learned", title: "Learned absolute", height: 210 },
    { name: "accuracy", title: "Right answers", height: 230, wide: true },
  ],
  create: createTask,
};

function createTask(api, data) {
  const heads = remember((offset) => ({
    rotary: rotaryHead(data.rotary, data.offsets.indexOf(offset)),
    learned: learnedHead(data.learned, data.offsets.indexOf(offset)),
  }));
  const curves = Object.fromEntries(["rotary", "learned"].map((k) => [k, unpack(data.accuracy[k])]));
  let running = null;

  /** Count right answers in short slices of time until enough sequences are seen. */
  function run(state, finished) {
    const random = uniform(7);
    const counts = { rotary: 0, learned: 0, n: 0 };
    const pair = heads(state.offset);
    api.busy(true);
    const slice = () => {
      const until = performance.now() + 8;
      while (counts.n < ENOUGH && performance.now() < until) {
        const tokens = randomTokens(state.length, LETTERS.length, random);
        for (const name of ["rotary", "learned"])
          counts[name] += argmax(attend(pair[name], tokens, state.length).answer) === tokens[state.offset];
        counts.n++;
      }
      api.busy(counts.n < ENOUGH);
      finished(counts);
      if (counts.n < ENOUGH) running = requestAnimationFrame(slice);
    };
    running = requestAnimationFrame(slice);
  }
  api.stop = () => {
    cancelAnimationFrame(running);
    api.busy(false);
  };

  function drawHead(name, state, tokens) {
    const { weights, answer } = attend(heads(state.offset)[name], tokens, state.length);
    const target = state.length - 1 - state.offset;
    const best = state.length - 1 - argmax(weights);
    const given = argmax(answer);
    const right = given === tokens[state.offset];
    const text = `answers ${LETTERS[given]} (${right ? "right" : "wrong"}), attention on the target ${number(weights[state.offset])}, most at position ${best}`;
    plot(api.svgs[name], {
      x: {
        from: -0.5,
        to: state.length - 0.5,
        label: state.length <= TYPED ? "token, in reading order" : "position (tokens)",
        ticks: state.length <= TYPED ? lettersOf(tokens).reverse().map((c, j) => [j, c]) : undefined,
      },
      y: { from: 0, to: 1, label: "attention weight" },
      layers: [
        { type: "band", from: -0.5, to: Math.min(data.longest, state.length) - 0.5, text: state.length > 30 ? "trained" : "" },
        { type: "rule", x: target, color: "var(--lx-muted)", text: `target ${LETTERS[tokens[state.offset]]}` },
        { type: "stems", y: weights.slice().reverse(), color: `var(--lx-${name})` },
      ],
      label: `${name} head, ${state.length} tokens, target at position ${target}: ${text}`,
    });
    return text;
  }

  function drawAccuracy(state, counts) {
    const index = data.offsets.indexOf(state.offset);
    const layers = [
      { type: "band", from: 8, to: data.longest, text: "trained" },
      { type: "rule", y: 1 / LETTERS.length, text: "chance", color: "var(--lx-muted)", dash: "2 3" },
    ];
    for (const name of ["rotary", "learned"]) {
      const color = `var(--lx-${name})`;
      layers.push({ type: "line", x: data.accuracy.lengths, y: row(curves[name], index), color, width: 1.4, opacity: 0.6 });
      layers.push({ type: "dots", x: [state.length], y: [counts[name] / counts.n], color, r: name === "rotary" ? 7 : 4.5 });
    }
    const words = `rotary ${number(counts.rotary / counts.n)}, learned ${number(counts.learned / counts.n)}`;
    plot(api.svgs.accuracy, {
      x: { from: 8, to: 1024, log: true, label: "length (tokens)", ticks: [16, 32, 64, 128, 256, 512, 1024].map((n) => [n, integer(n)]) },
      y: { from: 0, to: 1.03, label: "accuracy", ticks: UNIT },
      layers,
      label: `accuracy at ${state.length} tokens over ${integer(counts.n)} random sequences: ${words}`,
    });
    return words;
  }

  let key = "";
  let said = "";
  return (state) => {
    const tokens = shownTokens(state);
    const words = ["rotary", "learned"].map((name) => `${name === "rotary" ? "Rotary" : "Learned"} ${drawHead(name, state, tokens)}.`);
    const task = `${state.length},${state.offset},${api.svgs.accuracy.clientWidth}`;
    if (key !== task) {
      key = task;
      said = "";
      api.stop();
      run(state, (counts) => {
        const found = drawAccuracy(state, counts);
        if (counts.n < ENOUGH) return;
        said = `Over ${integer(counts.n)} random sequences of ${state.length} tokens: ${found}.`;
        api.say([...words, said].join(" "));
      });
    }
    return [...words, said].join(" ");
  };
}

/** Show the explorable in an element. */
function render(context) {
  return build(TASK, context);
}
export default { render };
