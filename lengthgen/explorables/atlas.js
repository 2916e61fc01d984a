// Chapter 8: two encodings side by side; what they keep, their kernels, and their report cards.

/** The parts of the figure; its menus list the encodings that the data holds. */
function atlasSpec({ encodings, offsets, trained }) {
  const names = Object.keys(encodings);
  const pick = (name, i) => (names.includes(name) ? name : names[i]);
  const options = names.map((name) => [name, name]);
  return {
    name: "atlas",
    caption:
      `All heads were trained on up to ${trained} tokens (shaded). ` +
      "Lines are means over seeds, their shade the range from the worst seed to the best. " +
      "Compare xpos with rotary, then t5 with t5-within, whose table has no untrained entry, " +
      "and alibi at one offset with the other. The kernel is the mean logit of the last of 64 " +
      "queries; it holds for other queries only if the departure from offset alone is small.",
    controls: [
      { name: "first", label: "First encoding", value: pick("rotary", 0), options },
      { name: "second", label: "Second encoding", value: pick("xpos", 1), options },
      {
        name: "offset",
        label: "Offset K",
        value: offsets[offsets.length - 1],
        values: offsets,
        show: tokensBack,
      },
    ],
    pictures: [
      { name: "accuracy", title: "Right answers, by length", height: 250, wide: true },
      { name: "first", title: "Kernel", height: 210 },
      { name: "second", title: "Kernel", height: 210 },
    ],
    table: "Report cards",
    create: createAtlas,
  };
}

function createAtlas(api, data) {
  const { trained, vocabulary, fit } = data;
  const sides = ["first", "second"];
  const looks = { first: {}, second: { dash: "6 4" } };
  const atLength = ({ lengths, mean }, length) => mean[lengths.indexOf(length)];
  const reach = ({ lengths }) => lengths[lengths.length - 1];
  const longest = Math.max(...Object.values(data.encodings).map(({ cards }) => reach(cards[0])));
  const shown = (value, digits = 2) =>
    value === null || value === undefined ? "–" : number(value, digits);

  /** Rows of the table: a group, what is measured, and the words for one card. */
  const measures = [
    ...data.margin_offsets.map((n, i) => [
      "could",
      `margin on offsets 0 to ${integer(n - 1)}`,
      (card) => shown(card.could[i], 3),
    ]),
    ["learns", `seeds with ${fit} at length ${trained}`, (card) => card.fitted.join(" of ")],
    ["keeps", "accuracy at length 48", (card) => shown(atLength(card, 48))],
    [
      "keeps",
      `accuracy at length ${integer(longest)}`,
      (card) =>
        shown(card.mean[card.mean.length - 1]) +
        (reach(card) < longest ? ` (at ${integer(reach(card))})` : ""),
    ],
    ["why", "departure from offset alone", (card) => tiny(card.equivariance_error)],
    ["why", "pinning index", (card) => shown(card.pinning_index)],
    ["why", "alignment", (card) => shown(card.alignment)],
    ["why", "error of the dilution law", (card) => shown(card.dilution_error, 3)],
  ];
  const tiny = (x) => (x < data.tolerance ? `&lt; ${number(data.tolerance, 3)}` : number(x));

  function drawAccuracy(chosen) {
    const layers = [
      mark.band(14, trained, "trained"),
      mark.chance(vocabulary),
    ];
    for (const side of sides) {
      const { card, color } = chosen[side];
      const { lengths: x, mean: y, low, high } = card;
      layers.push({ type: "range", x, low, high, color });
      layers.push(mark.line(x, y, color, { width: 2, ...looks[side] }));
      layers.push(mark.dots(x, y, color, { hollow: side === "second" }));
    }
    const words = sides.map((side) => {
      const { name, card } = chosen[side];
      const last = shown(card.mean[card.mean.length - 1]);
      return `${name} ${shown(atLength(card, 48))} at 48, ${last} at ${integer(reach(card))}`;
    });
    const ticks = ticksAt(16, 32, 64, 128, 256, 512, 1024);
    plot(api.svgs.accuracy, {
      x: { from: 14, to: longest * 1.05, log: true, label: "length (tokens)", ticks },
      y: { from: 0, to: 1.15, label: "accuracy", ticks: UNIT },
      layers,
      label: `accuracy by length: ${words.join("; ")}`,
    });
    return words;
  }

  function drawKernel(side, { name, card, color }, offset) {
    const { kernel } = card;
    const [low, high] = extent(kernel);
    const room = (high - low) * 0.1 || 1; // a kernel may be constant
    const best = argmax(kernel);
    api.title(side, `${name}: kernel`);
    plot(api.svgs[side], {
      x: places(kernel.length, "offset (tokens)"),
      y: { from: low - room, to: high + room, label: "mean logit (nats)", ticks: 4 },
      layers: [
        mark.band(-0.5, trained - 0.5),
        mark.target(offset, "target"),
        mark.line(null, kernel, color, looks[side]),
      ],
      label:
        `kernel of ${name} at offsets 0 to ${kernel.length - 1}: ` +
        (high > low ? `largest at offset ${best}` : "constant"),
    });
  }

  function fillTable(chosen) {
    const names = sides.map((side) => `<th scope="col">${chosen[side].name}</th>`).join("");
    const rows = measures.map(([group, measure, words], i) => {
      const first = i === 0 || measures[i - 1][0] !== group;
      const cells = sides.map((side) => `<td>${words(chosen[side].card)}</td>`).join("");
      const name = `<span class="lx-group">${first ? group : ""}</span>`;
      const line = first ? '<tr class="lx-first">' : "<tr>";
      return `${line}<th scope="row">${name}${measure}</th>${cells}</tr>`;
    });
    const head = `<thead><tr><td></td>${names}</tr></thead>`;
    api.table.innerHTML = `${head}<tbody>${rows.join("")}</tbody>`;
  }

  return (state) => {
    const index = data.offsets.indexOf(state.offset);
    const chosen = {};
    for (const side of sides) {
      const name = state[side];
      const { color, cards } = data.encodings[name];
      chosen[side] = { name, color, card: cards[index] };
    }
    api.legend(
      sides.map((side) => ({ color: chosen[side].color, text: chosen[side].name, ...looks[side] })),
    );
    const words = drawAccuracy(chosen);
    for (const side of sides) drawKernel(side, chosen[side], state.offset);
    fillTable(chosen);
    return `Offset ${state.offset}, mean accuracy over seeds: ${words.join("; ")}.`;
  };
}

/** Show the explorable in an element. */
function render(context) {
  return build(atlasSpec(context.model.get("data")), context);
}
export default { render };
