// Chapter 3: lengthen the sequence, move rows of the position table, and see where attention goes.

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
    { name: "offset", label: "Offset K", value: 2, min: 1, max: 8, show: (v) => `${v} token${v > 1 ? "s" : ""} back` },
    { name: "operation", label: "Position table", value: "none", options: [["none", "as trained"], ["copy", "copy a row onto another"], ["exchange", "exchange two rows"]] },
    { name: "source", label: "This row", value: 13, min: 0, max: 511, show: (v) => `row ${v}`, off: (s) => s.operation === "none" },
    { name: "destination", label: "Onto or with this row", value: 40, min: 0, max: 511, show: (v) => `row ${v}`, off: (s) => s.operation === "none" },
  ],
  legend: [
    { color: "var(--lx-learned)", text: "learned absolute" },
    { color: "var(--lx-rotary)", text: "rotary" },
    { color: "var(--lx-muted)", dash: "5 4", text: "target" },
  ],
  pictures: [
    { name: "attention", title: "Mean attention of the learned head", height: 220, wide: true },
    { name: "profile", title: "What the mean content prefers", height: 210 },
    { name: "peaks", title: "Where the peak is, by length", height: 210 },
  ],
  create: createPinning,
};

function createPinning(api, data) {
  const SEQUENCES = 128;
  const trained = remember((offset) => learnedHead(data.learned, data.offsets.indexOf(offset)));
  const changed = remember((offset, operation, source, destination) => trained(offset).withRows(operation, source, destination));
  const rotary = remember((offset) => rotaryHead(data.rotary, data.offsets.indexOf(offset)));
  const lengths = geometric(16, 512, 18);
  const peakAt = (head, length, n) => length - 1 - argmax(meanAttention(head, length, n));
  const rotaryPeaks = remember((offset) => lengths.map((length) => peakAt(rotary(offset), length, 16)));

  return (state) => {
    const { length, offset, operation } = state;
    const rows = operation === "none" ? [0, 0] : [state.source, state.destination];
    const head = changed(offset, operation, ...rows);
    const attention = meanAttention(head, length, SEQUENCES).reverse();
    const peak = argmax(attention);
    const target = length - 1 - offset;
    const band = { type: "band", from: -0.5, to: Math.min(data.longest, length) - 0.5, text: "trained rows" };
    const moved = operation === "none" ? [] : rows.map((x, i) => ({ type: "rule", x, width: 1, dash: "1 3", color: "currentColor", line: 1, text: `${i ? "destination" : "source"} ${x}` })).filter((mark) => mark.x < length);
    const words = `peak at position ${peak}, ${peak < data.longest ? "inside" : "outside"} the training range, with ${number(attention[peak])} of the attention; target at ${target} with ${number(attention[target])}`;
    const done = { none: "", copy: `row ${rows[0]} copied onto row ${rows[1]}, `, exchange: `rows ${rows.join(" and ")} exchanged, ` }[operation];
    const top = Math.max(0.05, attention[peak]);
    plot(api.svgs.attention, {
      x: { from: -0.5, to: length - 0.5, label: "position (tokens)" },
      y: { from: 0, to: top * 1.15, label: "mean attention", ticks: 4 },
      layers: [
        band,
        { type: "rule", x: target, color: "var(--lx-muted)", text: "target" },
        { type: "stems", y: attention, color: "var(--lx-learned)" },
        ...moved,
      ],
      label: `learned head, ${done}length ${length}, offset ${offset}: ${words}`,
    });

    const profile = head.contentProfile(length);
    const predicted = argmax(profile);
    const [low, high] = extent(profile);
    plot(api.svgs.profile, {
      x: { from: -0.5, to: length - 0.5, label: "row of the position table" },
      y: { from: low - 0.1 * (high - low), to: high + 0.15 * (high - low), label: "preference (logit)", ticks: 4 },
      layers: [
        band,
        { type: "line", y: profile, color: "var(--lx-learned)" },
        { type: "dots", x: [predicted], y: [high], color: "var(--lx-learned)", r: 4.5, hollow: true },
      ],
      label: `the mean content prefers row ${predicted}`,
    });

    const peaks = lengths.map((n) => peakAt(head, n, 16));
    plot(api.svgs.peaks, {
      x: { from: 16, to: 512, log: true, label: "length (tokens)", ticks: [16, 32, 64, 128, 256, 512].map((n) => [n, n]) },
      y: { from: 4, to: 512, log: true, label: "position of the peak", ticks: [4, 16, 64, 256].map((n) => [n, n]) },
      layers: [
        { type: "line", x: lengths, y: lengths.map((n) => n - 1 - offset), color: "var(--lx-muted)", dash: "5 4", width: 1.2 },
        { type: "dots", x: lengths, y: rotaryPeaks(offset).map((y) => Math.max(y, 4)), color: "var(--lx-rotary)", r: 2.6 },
        { type: "dots", x: lengths, y: peaks.map((y) => Math.max(y, 4)), color: "var(--lx-learned)", r: 3.4 },
        { type: "rule", x: Math.max(length, 16), color: "currentColor", width: 0.8, dash: "1 3" },
      ],
      label: `peak of the learned head at lengths ${lengths.join(", ")}: positions ${peaks.join(", ")}`,
    });
    return `Length ${length}: ${words}. The mean content prefers row ${predicted}.`;
  };
}

/** Show the explorable in an element. */
function render(context) {
  return build(PINNING, context);
}
export default { render };
