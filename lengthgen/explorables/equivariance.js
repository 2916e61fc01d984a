// Chapter 2: move every position by the same shift; what happens to the map of logits?

const SPAN = 24;
const isNumber = (x) => !Number.isNaN(x);

const EQUIVARIANCE = {
  name: "equivariance",
  caption:
    "Rows are queries, columns keys, strong colour is a large logit (mean over tokens). Drag " +
    "the shift: all positions move together. The rotary map is computed anew at every " +
    "position and stands still; the learned one was shaped on its first 16 rows alone, and " +
    "its table ends at row 1,023. Then round the angles to 32 bits, a common fault, and shift " +
    "far.",
  controls: [
    {
      name: "shift",
      label: "Shift of all positions",
      value: 0,
      values: [
        0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 48, 100, 200, 500, 990, 1000, 1001, 1012, 1024, 2000, 5000,
        10000, 30000, 100000, 300000, 1000000,
      ],
      show: (v) => `${integer(v)} tokens`,
    },
    offsetControl(2, 8, "Heads trained for offset K"),
    { name: "rounded", label: "Round the rotary angles to 32 bits", value: false, check: true },
  ],
  legend: [
    { color: INK.rotary, text: "rotary, shifted" },
    { color: INK.learned, text: "learned absolute, shifted" },
    { color: MUTED, dash: "5 4", text: "not shifted" },
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

  /** Mean logits of all pairs of SPAN positions from `first`; NaN where there is none. */
  function rotaryMap(index, first, rounded) {
    const [q, k] = [row(query, index), row(key, index)];
    const at = (x) =>
      Array.from({ length: SPAN }, (_, i) => rotate(x, first + i, frequencies, rounded));
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
  const still = remember((name, index) =>
    name === "rotary" ? rotaryMap(index, 0, false) : learnedMap(index, 0),
  );

  /** What a shift did to a map, in words; `missing` tells whether the table ended. */
  function compare(before, after, index) {
    const [low, high] = extent(before.filter(isNumber));
    const size = Math.max(Math.abs(low), Math.abs(high));
    let [change, missing] = [0, 0];
    before.forEach((x, n) => {
      if (!isNumber(after[n])) missing += isNumber(x);
      else change = Math.max(change, Math.abs(after[n] - x) / size);
    });
    const gone = missing === (SPAN * (SPAN + 1)) / 2;
    const end = `the table has ${integer(tables(index).shape[0])} rows`;
    const changed =
      `largest change ${change < 1e-12 ? "below 10⁻¹²" : number(change, 2)} ` +
      "of the largest logit";
    const words = gone ? `no logit: ${end}` : changed + (missing ? `; logits missing: ${end}` : "");
    return { low, high, words, missing };
  }

  function drawMap(name, index, { shift, offset, rounded }) {
    const before = still(name, index);
    const after = name === "rotary" ? rotaryMap(index, shift, rounded) : learnedMap(index, shift);
    const { low, high, words, missing } = compare(before, after, index);
    const ticks = [0, 8, 16, 23].map((i) => [i, shift ? `+${i}` : i]);
    const position = shift ? `position − ${integer(shift)}` : "position";
    const [key, query] = ["key", "query"].map((who) => places(SPAN, `${who} ${position}`, ticks));
    const who = `${name} head trained for offset ${offset}`;
    const end = `past the table's ${integer(tables(index).shape[0])} rows`;
    const shades = after.map((x) => Math.min(1, Math.max(0, (x - low) / (high - low))));
    plot(api.svgs[name], {
      x: key,
      y: { ...query, from: query.to, to: query.from },
      layers: [
        { type: "cells", columns: SPAN, values: shades, color: INK[name] },
        ...(missing ? [mark.words(SPAN / 2, end)] : []),
      ],
      label: `${who}, logits of ${SPAN} positions from ${integer(shift)}: ${words}`,
    });

    const [first, last] = [before, after].map((values) => values.slice(SPAN * (SPAN - 1)));
    const [bottom, top] = extent(first, last.filter(isNumber));
    const pad = (top - bottom) * 0.08;
    plot(api.svgs[`${name}Last`], {
      x: key,
      y: { from: bottom - pad, to: top + pad, label: "mean logit", ticks: 4 },
      layers: [
        mark.target(SPAN - 1 - offset, "target"),
        mark.line(null, last, INK[name], { width: 2.4 }),
        mark.dots(null, last, INK[name], { r: 2.6 }),
        mark.line(null, first, MUTED, { width: 1.4, dash: "5 4" }),
      ],
      label:
        `${who}, logits of the last of ${SPAN} queries, ` +
        `shifted by ${integer(shift)} and not: ${words}`,
    });
    return words;
  }

  return (state) => {
    const index = data.offsets.indexOf(state.offset);
    const [rotary, learned] = ["rotary", "learned"].map((name) => drawMap(name, index, state));
    return (
      `Shift by ${integer(state.shift)} tokens. ` +
      `Rotary: ${rotary}. Learned absolute: ${learned}.`
    );
  };
}

/** Show the explorable in an element. */
function render(context) {
  return build(EQUIVARIANCE, context);
}
export default { render };
