// Chapter 7: the attention of every head of two trained decoders, and the answers they lead to.

const STRONGEST = "strongest";

/** The parts of the figure; its menu has an entry for every head of the decoders. */
function transformerSpec({ layers, heads, lengths, longest, offset }) {
  const indices = Array.from({ length: layers * heads }, (_, i) => i);
  return {
    name: "transformer",
    caption:
      "Rows are queries, columns keys, on one test sequence. " +
      `A head that looks ${offset} tokens back draws a line between the two thin ones. ` +
      `Lengthen the sequence past the ${longest} tokens of training (dashed): ` +
      "the rotary line goes on, the learned one breaks. " +
      "Faint lines beside it are offsets that the rotary head half takes for the target. " +
      "Then step through the heads. Weights are rounded to 1/255, " +
      "and shades show their square root, so that small weights are seen.",
    controls: [
      {
        name: "length",
        label: "Length",
        value: lengths[Math.max(0, lengths.length - 2)],
        values: lengths,
        show: (v) => `${v} tokens`,
      },
      {
        name: "head",
        label: "Head",
        value: STRONGEST,
        options: [
          [STRONGEST, "strongest on the target"],
          ...indices.map((i) => [headPlace(i, heads).join("."), headName(i, heads)]),
        ],
      },
    ],
    legend: [
      { color: INK.rotary, text: "rotary" },
      { color: INK.learned, text: "learned absolute" },
      { color: MUTED, dot: true, text: "an answer: right above, wrong below" },
    ],
    pictures: [
      { name: "rotary", title: "Rotary: attention", height: 330 },
      { name: "learned", title: "Learned absolute: attention", height: 330 },
      { name: "target", title: "Attention at the target, by query", height: 200, wide: true },
      {
        name: "answers",
        title: "Right answers: this sequence (dots) and the mean of all seeds (lines)",
        height: 220,
        wide: true,
      },
    ],
    create: createTransformer,
  };
}

/** Layer and head, counted from 1. */
function headPlace(index, heads) {
  return [Math.floor(index / heads) + 1, (index % heads) + 1];
}

function headName(index, heads) {
  const [layer, head] = headPlace(index, heads);
  return `layer ${layer}, head ${head}`;
}

function createTransformer(api, data) {
  const { offset, longest, lengths, heads } = data;
  const names = ["rotary", "learned"];
  const maps = remember((name, length) => unpack(data[name].maps[lengths.indexOf(length)]));
  const right = remember((name, length) => unpack(data[name].right[lengths.indexOf(length)]));
  const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;

  /** Attention on the key at offset K, for every query that has one. */
  function atTarget(name, length, head) {
    const weights = row(maps(name, length), head);
    return Float64Array.from({ length: length - offset }, (_, i) => {
      const query = i + offset;
      return weights[(query * (query + 1)) / 2 + i] / 255;
    });
  }
  const strongest = remember((name) => {
    const every = Array.from({ length: data.layers * heads }, (_, head) => head);
    return argmax(every.map((head) => mean(atTarget(name, lengths[0], head))));
  });
  function chosen(name, state) {
    if (state.head === STRONGEST) return strongest(name);
    const [layer, head] = state.head.split(".");
    return (layer - 1) * heads + (head - 1);
  }

  function drawMap(name, length, head, words) {
    const weights = row(maps(name, length), head);
    const shades = new Float64Array(length * length).fill(NaN);
    for (let query = 0, n = 0; query < length; query++)
      for (let key = 0; key <= query; key++, n++)
        shades[query * length + key] = Math.sqrt(weights[n] / 255);
    const last = length - 1 - offset;
    const thin = { width: 0.7, opacity: 0.6 };
    const beside = (gap) =>
      mark.line([0, last], [offset + gap, offset + gap + last], undefined, thin);
    const gap = Math.max(1, length / 64);
    const end = { type: "rule", color: MUTED, width: 0.8 };
    const ticks = ticksAt(...[0, 1, 2, 3].map((i) => (i * length) / 4));
    const [key, query] = ["key", "query"].map((who) => places(length, `${who} position`, ticks));
    plot(api.svgs[name], {
      x: key,
      y: { ...query, from: query.to, to: query.from },
      layers: [
        { type: "cells", columns: length, values: shades, color: INK[name] },
        beside(gap),
        beside(-gap),
        ...(length > longest
          ? [
              { ...end, x: longest - 0.5 },
              { ...end, y: longest - 0.5 },
            ]
          : []),
        mark.words(length * 0.09, headName(head, heads)),
      ],
      label: `${name} decoder, ${headName(head, heads)}, ${length} tokens: ${words}`,
    });
  }

  const trained = (text) => mark.band(-0.5, longest - 0.5, text);
  const positions = (length) => Array.from({ length: length - offset }, (_, i) => i + offset);

  function drawTarget(length, found) {
    plot(api.svgs.target, {
      x: places(length, "query position"),
      y: { from: 0, to: 1.17, label: "attention weight", ticks: UNIT },
      layers: [
        trained("trained positions"),
        ...names.map((name) =>
          mark.line(positions(length), found[name].weights, INK[name], { width: 1.6 }),
        ),
      ],
      label: `attention at the target: ${names.map((n) => `${n} ${found[n].words}`).join("; ")}`,
    });
  }

  // Answers of this sequence stand above 1 and below 0, where the mean accuracy never is.
  const LANES = { rotary: [-0.1, 1.18], learned: [-0.18, 1.1] };

  function drawAnswers(length, found) {
    const x = positions(length);
    const means = names.map((name) => {
      const y = data[name].accuracy.slice(0, x.length);
      return mark.line(x, y, INK[name], { width: 1.4, opacity: 0.65 });
    });
    const dots = names.map((name) => {
      const y = Array.from(right(name, length), (r) => LANES[name][r]);
      return mark.dots(x, y, INK[name], { r: length > 64 ? 1.7 : 2.3 });
    });
    const said = names.map((name) => `${name} ${found[name].answered}`).join("; ");
    plot(api.svgs.answers, {
      x: places(length, "position (tokens)"),
      y: { from: -0.24, to: 1.26, label: "accuracy", ticks: UNIT },
      layers: [trained(), ...means, ...dots],
      label: `right answers by position at ${length} tokens: ${said}`,
    });
  }

  return (state) => {
    const { length } = state;
    const inside = longest - offset;
    const found = {};
    for (const name of names) {
      const head = chosen(name, state);
      const weights = atTarget(name, length, head);
      const beyond = weights.slice(inside);
      const answers = right(name, length);
      const later = answers.slice(inside);
      const [shown, where] = later.length ? [later, "beyond"] : [answers, "in"];
      const hits = shown.reduce((a, b) => a + b, 0);
      found[name] = {
        weights,
        words:
          `attention on the target ${number(mean(weights.slice(0, inside)))} in range` +
          (beyond.length ? `, ${number(mean(beyond))} beyond` : ""),
        answered: `${hits} of ${shown.length} answers right ${where} range`,
      };
      drawMap(name, length, head, found[name].words);
    }
    drawTarget(length, found);
    drawAnswers(length, found);
    const sentence = (title, name) =>
      `${title}, ${headName(chosen(name, state), heads)}: ` +
      `${found[name].words}; ${found[name].answered}.`;
    return `${sentence("Rotary", "rotary")} ${sentence("Learned absolute", "learned")}`;
  };
}

/** Show the explorable in an element. */
function render(context) {
  return build(transformerSpec(context.model.get("data")), context);
}
export default { render };
