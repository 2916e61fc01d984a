// Chapter 3: lengthen the sequence, move rows of the position table, and see where attention goes.

/** The slider of a row of the position table. */
function rowControl(name, label, value) {
  const [max, off] = [(s) => s.length - 1, (s) => s.operation === "none"];
  return { name, label, value, min: 0, max, show: (v) => `row ${v}`, off };
}

const PINNING = {
  name: "pinning",
  caption:
    "Drag the length past 16. The target (dashed) moves away with the end of the sequence; " +
    "the peak of attention stays in the trained rows (shaded), where the mean content's " +
    "preference is largest (circle). Now copy that row onto one far outside, or exchange the " +
    "two: attention follows the row. The rotary head follows the target instead, until an " +
    "alias takes over (chapter 5).",
  controls: [
    { name: "length", label: "Length", value: 64, min: 9, max: 512, show: (v) => `${v} tokens` },
    offsetControl(2),
    {
      name: "operation",
      label: "Position table",
      value: "none",
      options: [
        ["none", "as trained"],
        ["copy", "copy a row onto another"],
        ["exchange", "exchange two rows"],
      ],
    },
    rowControl("source", "This row", 13),
    rowControl("destination", "Onto or with this row", 40),
  ],
  legend: [
    { color: INK.learned, text: "learned absolute" },
    { color: INK.rotary, text: "rotary" },
    { color: MUTED, dash: "5 4", text: "target" },
  ],
  pictures: [
    { name: "attention", title: "Mean attention of the learned head", height: 220, wide: true },
    { name: "profile", title: "What the mean content prefers", height: 210 },
    { name: "peaks", title: "Where the peak is, by length", height: 210 },
  ],
  adjust: ({ length, source, destination }) => ({
    source: Math.min(source, length - 1),
    destination: Math.min(destination, length - 1),
  }),
  create: createPinning,
};

function createPinning(api, data) {
  const SEQUENCES = 128;
  const trained = remember((offset) => learnedHead(data.learned, data.offsets.indexOf(offset)));
  const changed = remember((offset, operation, source, destination) =>
    trained(offset).withRows(operation, source, destination),
  );
  const rotary = remember((offset) => rotaryHead(data.rotary, data.offsets.indexOf(offset)));
  const lengths = geometric(16, 512, 18);
  const peaksOf = (head) =>
    lengths.map((length) => length - 1 - argmax(meanAttention(head, length, 16)));
  const learnedPeaks = remember((...key) => peaksOf(changed(...key)));
  const rotaryPeaks = remember((offset) => peaksOf(rotary(offset)));

  function drawAttention({ length, offset, operation }, rows, attention, words) {
    const moved = rows
      .map((x, i) => ({ x, text: `${i ? "destination" : "source"} ${x}` }))
      .filter(({ x }) => x < length);
    const done = {
      none: "",
      copy: `row ${rows[0]} copied onto row ${rows[1]}, `,
      exchange: `rows ${rows.join(" and ")} exchanged, `,
    }[operation];
    const top = Math.max(0.05, extent(attention)[1]);
    plot(api.svgs.attention, {
      x: places(length, "position (tokens)"),
      y: { from: 0, to: top * 1.15, label: "mean attention", ticks: 4 },
      layers: [
        trainedRows(length),
        mark.target(length - 1 - offset, "target", "5 4"),
        mark.stems(attention, INK.learned),
        ...moved.map(({ x, text }) => ({ ...mark.now(x), line: 1, text })),
      ],
      label: `learned head, ${done}length ${length}, offset ${offset}: ${words}`,
    });
  }

  function drawProfile(length, profile) {
    const [low, high] = extent(profile);
    const size = high - low;
    const predicted = argmax(profile);
    plot(api.svgs.profile, {
      x: places(length, "row of the position table"),
      y: { from: low - 0.1 * size, to: high + 0.15 * size, label: "preference (logit)", ticks: 4 },
      layers: [
        trainedRows(length),
        mark.line(null, profile, INK.learned),
        mark.dots([predicted], [high], INK.learned, { r: 4.5, hollow: true }),
      ],
      label: `the mean content prefers row ${predicted}`,
    });
    return predicted;
  }

  function drawPeaks({ length, offset }, peaks) {
    const targets = lengths.map((n) => n - 1 - offset);
    const shown = (positions) => positions.map((y) => Math.max(y, 4));
    const size = { from: 4, to: 512, log: true, label: "position of the peak" };
    plot(api.svgs.peaks, {
      x: { ...size, from: 16, label: "length (tokens)", ticks: ticksAt(16, 32, 64, 128, 256, 512) },
      y: { ...size, ticks: ticksAt(4, 16, 64, 256) },
      layers: [
        mark.line(lengths, targets, MUTED, { dash: "5 4", width: 1.2 }),
        mark.dots(lengths, shown(rotaryPeaks(offset)), INK.rotary, { r: 2.6 }),
        mark.dots(lengths, shown(peaks), INK.learned, { r: 3.4 }),
        mark.now(Math.max(length, 16)),
      ],
      label:
        `peak of the learned head at lengths ${lengths.join(", ")}: ` +
        `positions ${peaks.join(", ")}`,
    });
  }

  const trainedRows = (length) =>
    mark.band(-0.5, Math.min(data.longest, length) - 0.5, "trained rows");

  return (state) => {
    const { length, offset, operation } = state;
    const rows = operation === "none" ? [] : [state.source, state.destination];
    const head = changed(offset, operation, ...rows);
    const attention = meanAttention(head, length, SEQUENCES).reverse();
    const peak = argmax(attention);
    const target = length - 1 - offset;
    const words =
      `peak at position ${peak}, ${peak < data.longest ? "inside" : "outside"} the training ` +
      `range, with ${number(attention[peak])} of the attention; ` +
      `target at ${target} with ${number(attention[target])}`;
    drawAttention(state, rows, attention, words);
    const predicted = drawProfile(length, head.contentProfile(length));
    drawPeaks(state, learnedPeaks(offset, operation, ...rows));
    return `Length ${length}: ${words}. The mean content prefers row ${predicted}.`;
  };
}

/** Show the explorable in an element. */
function render(context) {
  return build(PINNING, context);
}
export default { render };
