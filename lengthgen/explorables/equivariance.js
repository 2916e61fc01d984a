// Chapter 2: move every position by the same shift; what happens to the map of logits?

const SPAN = 24;

const EQUIVARIANCE = {
  name: "equivariance",
  caption:
    "Rows are queries, columns keys, strong colour is a large logit (mean over tokens). Drag " +
    "the shift: all positions move together. The rotary map is computed anew at every " +
    "position and stands still; the learned one was shaped on its first 16 rows alone, and " +
    "its table ends at row 1,023. Then round the angles to 32 bits, a common fault, and shift " +
    "far.",
  controls: [
    { name: "shift", label: "Shift of all positions", value: 0, values: [0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 48, 100, 200, 500, 990, 1000, 1001, 1012, 1024, 2000, 5000, 10000, 30000, 100000, 300000, 1000000], show: (v) => `${integer(v)} tokens` },
    { name: "offset", label: "Heads trained for offset K", value: 2, min: 1, max: 8, show: (v) => `${v} token${v > 1 ? "s" : ""} back` },
    { name: "rounded", label: "Round the rotary angles to 32 bits", value: false, check: true },
  ],
  legend: [
    { color: "var(--lx-rotary)", text: "rotary, shifted" },
    { color: "var(--lx-learned)", text: "learned absolute, shifted" },
    { color: "var(--lx-muted)", dash: "5 4", text: "not shifted" },
  ],
  pictures: [
    { name: "rotary", title: "Rotary: logits", height: 290 },
    { name: "learned", title: "Learned absolute: logits", height: 290 },
    { name: "rotaryLast", title: "Rotary: the last query", height: 200 },
    { name: "learnedLast", title: "Learned absolute: the last query", height: 200 },
  ],
  create: createEquivariance,
};

function createEquivariance(api, data) {
  const [query, key] = ["query", "key"].map((name) => unpack(data.rotary[name]));
  const [mean, form] = ["mean", "form"].map((name) => unpack(data.learned[name]));
  const frequencies = rotaryFrequencies(query.shape[1] / 2);

  /** Mean logits of all pairs of SPAN positions from `first`; NaN for the future and past the table. */
  function rotaryMap(index, first, rounded) {
    const [q, k] = [row(query, index), row(key, index)];
    const at = (x) => Array.from({ length: SPAN }, (_, i) => rotate(x, first + i, frequencies, rounded));
    const [queries, keys] = [at(q), at(k)];
    return fill((i, j) => dot(queries[i], keys[j]) / Math.sqrt(q.length));
  }
  const tables = remember((index) => positionRows(data.learned, index));
  function learnedMap(index, first) {
    const rows = tables(index);
    const [d, M, e] = [rows.shape[1], row(form, index), row(mean, index)];
    const keys = Array.from({ length: SPAN }, (_, i) =>
      first + i < rows.shape[0] ? e.map((x, c) => x + rows[(first + i) * d + c]) : null,
    );
    const queries = keys.map((x) => {
      if (!x) return null;
      x.shape = [1, d];
      return matmul(x, M);
    });
    return fill((i, j) => (queries[i] && keys[j] ? dot(queries[i], keys[j]) : NaN));
  }
  function fill(logit) {
    return Float64Array.from({ length: SPAN * SPAN }, (_, n) => {
      const [i, j] = [Math.floor(n / SPAN), n % SPAN];
      return j > i ? NaN : logit(i, j);
    });
  }
  const still = remember((name, index) => (name === "rotary" ? rotaryMap(index, 0, false) : learnedMap(index, 0)));

  function drawMap(name, index, state) {
    const before = still(name, index);
    const after = name === "rotary" ? rotaryMap(index, state.shift, state.rounded) : learnedMap(index, state.shift);
    const [low, high] = extent(before.filter((x) => !Number.isNaN(x)));
    const size = Math.max(Math.abs(low), Math.abs(high));
    let change = 0;
    let missing = 0;
    before.forEach((x, n) => {
      if (Number.isNaN(after[n])) missing += !Number.isNaN(x);
      else change = Math.max(change, Math.abs(after[n] - x) / size);
    });
    const gone = missing === (SPAN * (SPAN + 1)) / 2;
    const rows = missing ? `${gone ? "no logit" : "logits missing"}: the table has ${integer(tables(index).shape[0])} rows` : "";
    const words = gone ? rows : `largest change ${change < 1e-12 ? "below 10⁻¹²" : number(change, 2)} of the largest logit${rows ? `; ${rows}` : ""}`;
    const ticks = [0, 8, 16, 23].map((i) => [i, state.shift ? `+${i}` : i]);
    const shades = after.map((x) => (Number.isNaN(x) ? NaN : Math.min(1, Math.max(0, (x - low) / (high - low)))));
    const shown = state.shift ? `position − ${integer(state.shift)}` : "position";
    plot(api.svgs[name], {
      x: { from: -0.5, to: SPAN - 0.5, label: `key ${shown}`, ticks },
      y: { from: SPAN - 0.5, to: -0.5, label: `query ${shown}`, ticks },
      layers: [
        { type: "cells", columns: SPAN, values: shades, color: `var(--lx-${name})` },
        ...(missing ? [{ type: "rule", y: SPAN / 2, opacity: 0, text: `past the table's ${integer(tables(index).shape[0])} rows` }] : []),
      ],
      label: `${name} head trained for offset ${state.offset}, logits of ${SPAN} positions from ${integer(state.shift)}: ${words}`,
    });
    const last = (values) => values.slice(SPAN * (SPAN - 1));
    const [bottom, top] = extent(last(before), last(after).filter((x) => !Number.isNaN(x)));
    const pad = (top - bottom) * 0.08;
    plot(api.svgs[`${name}Last`], {
      x: { from: -0.5, to: SPAN - 0.5, label: `key ${shown}`, ticks },
      y: { from: bottom - pad, to: top + pad, label: "mean logit", ticks: 4 },
      layers: [
        { type: "rule", x: SPAN - 1 - state.offset, color: "var(--lx-muted)", dash: "2 3", text: "target" },
        { type: "line", y: last(after), color: `var(--lx-${name})`, width: 2.4 },
        { type: "dots", y: last(after), color: `var(--lx-${name})`, r: 2.6 },
        { type: "line", y: last(before), color: "var(--lx-muted)", width: 1.4, dash: "5 4" },
      ],
      label: `${name} head trained for offset ${state.offset}, logits of the last of ${SPAN} queries, shifted by ${integer(state.shift)} and not: ${words}`,
    });
    return words;
  }

  return (state) => {
    const index = data.offsets.indexOf(state.offset);
    const [rotary, learned] = ["rotary", "learned"].map((name) => drawMap(name, index, state));
    return `Shift by ${integer(state.shift)} tokens. Rotary: ${rotary}. Learned absolute: ${learned}.`;
  };
}

/** Show the explorable in an element. */
function render(context) {
  return build(EQUIVARIANCE, context);
}
export default { render };
