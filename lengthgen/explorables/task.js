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
    "keeps looking where the target used to be, and is then right by chance, once in " +
    `${LETTERS.length} sequences. The lower picture counts right answers over random sequences ` +
    "drawn on this page: circles are these two heads, lines the mean of all seeds in the frozen " +
    "results.",
  controls: [
    { name: "length", label: "Length", value: 16, min: 10, max: 512, show: (v) => `${v} tokens` },
    offsetControl(2),
    {
      name: "tail",
      label: "Last tokens (letters a to p)",
      value: "",
      letters: TYPED,
      known: /[a-p]/gi,
      text: (s) => lettersOf(shownTokens(s)).slice(0, TYPED).reverse().join(""),
    },
    { name: "seed", label: "Sequence", value: 20, min: 1, max: 50, show: (v) => `number ${v}` },
  ],
  actions: [
    {
      name: "shuffle",
      label: "Shuffle",
      run: ({ set, state }) => set({ seed: (state.seed % 50) + 1, tail: "" }),
    },
  ],
  legend: [
    { color: INK.rotary, text: "rotary" },
    { color: INK.learned, text: "learned absolute" },
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
  const curves = Object.fromEntries(
    ["rotary", "learned"].map((k) => [k, unpack(data.accuracy[k])]),
  );

  /** Count right answers until enough sequences are seen; `after` hears the counts so far. */
  function run({ length, offset }, after) {
    const random = uniform(7);
    const counts = { rotary: 0, learned: 0, n: 0 };
    const pair = heads(offset);
    const step = () => {
      const tokens = randomTokens(length, LETTERS.length, random);
      for (const name of ["rotary", "learned"])
        counts[name] += argmax(attend(pair[name], tokens, length).answer) === tokens[offset];
      return ++counts.n === ENOUGH;
    };
    inSlices(api, step, () => after(counts));
  }

  function drawHead(name, { length, offset }, tokens) {
    const { weights, answer } = attend(heads(offset)[name], tokens, length);
    const target = length - 1 - offset;
    const given = argmax(answer);
    const text =
      `answers ${LETTERS[given]} (${given === tokens[offset] ? "right" : "wrong"}), attention ` +
      `on the target ${number(weights[offset])}, most at position ${length - 1 - argmax(weights)}`;
    const letters = lettersOf(tokens).reverse();
    plot(api.svgs[name], {
      x:
        length > TYPED
          ? places(length, "position (tokens)")
          : places(length, "token, in reading order", [...letters.entries()]),
      y: { from: 0, to: 1, label: "attention weight" },
      layers: [
        mark.band(-0.5, Math.min(data.longest, length) - 0.5, length > 30 ? "trained" : ""),
        mark.target(target, `target ${letters[target]}`, "5 4"),
        mark.stems(weights.slice().reverse(), INK[name]),
      ],
      label: `${name} head, ${length} tokens, target at position ${target}: ${text}`,
    });
    return text;
  }

  function drawAccuracy({ length, offset }, counts) {
    const index = data.offsets.indexOf(offset);
    const share = (name) => counts[name] / counts.n;
    const layers = [mark.band(8, data.longest, "trained"), mark.chance(LETTERS.length)];
    for (const [name, r] of [
      ["rotary", 7],
      ["learned", 4.5],
    ]) {
      const means = row(curves[name], index);
      layers.push(
        mark.line(data.accuracy.lengths, means, INK[name], { width: 1.4, opacity: 0.6 }),
        mark.dots([length], [share(name)], INK[name], { r }),
      );
    }
    const words = `rotary ${number(share("rotary"))}, learned ${number(share("learned"))}`;
    const ticks = ticksAt(16, 32, 64, 128, 256, 512, 1024);
    plot(api.svgs.accuracy, {
      x: { from: 8, to: 1024, log: true, label: "length (tokens)", ticks },
      y: ACCURACY,
      layers,
      label: `accuracy at ${length} tokens over ${integer(counts.n)} random sequences: ${words}`,
    });
    return words;
  }

  let key = "";
  let said = "";
  return (state) => {
    const tokens = shownTokens(state);
    const words = ["rotary", "learned"].map(
      (name) => `${name === "rotary" ? "Rotary" : "Learned"} ${drawHead(name, state, tokens)}.`,
    );
    const task = `${state.length},${state.offset},${api.svgs.accuracy.size}`;
    if (key !== task) {
      key = task;
      said = "";
      api.stop?.();
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
