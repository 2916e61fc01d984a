// Pictures as SVG text: axes, lines, stems, dots, rules, bands, cells. Colours are CSS variables,
// so a picture follows the page's theme without being drawn again.

/** Ticks of a share. */
const UNIT = [
  [0, "0"],
  [0.5, "0.5"],
  [1, "1"],
];
const SIGNED = [
  [-1, "−1"],
  [0, "0"],
  [1, "1"],
];
const ACCURACY = { from: 0, to: 1.03, label: "accuracy", ticks: UNIT };
const MUTED = "var(--lx-muted)";
const INK = { rotary: "var(--lx-rotary)", learned: "var(--lx-learned)" };
const ROOM = { left: 52, right: 14, top: 10, bottom: 40 };

/** A number as a reader writes it. */
export function number(x, digits = 2) {
  if (x === 0) return "0";
  const size = Math.abs(x);
  if (size >= 1e6 || size < 10 ** -digits / 2) {
    const power = Math.floor(Math.log10(size / 0.995)); // 9.96 is written 10.0
    const factor = x / 10 ** power;
    const sign = String(power).replace("-", "−");
    return `${Math.abs(factor - 1) < 0.05 ? "" : `${factor.toFixed(1)} × `}10${superscript(sign)}`;
  }
  return size >= 1000 ? Math.round(x).toLocaleString("en") : x.toFixed(digits).replace("-", "−");
}

function superscript(text) {
  return [...text].map((c) => (c === "−" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[+c])).join("");
}

export function integer(x) {
  return Math.round(x).toLocaleString("en");
}

/** A power of ten. */
function power10(p) {
  return p ? `10${superscript(String(p).replace("-", "−"))}` : "1";
}

/** An axis of n places: offsets, positions or tokens. */
function places(n, label, ticks) {
  return { from: -0.5, to: n - 0.5, label, ticks };
}

/** Ticks at whole numbers. */
function ticksAt(...values) {
  return values.map((n) => [n, integer(n)]);
}

/** The layers that pictures are made of; `look` adds to one or changes it. */
const mark = {
  line: (x, y, color, look) => ({ type: "line", x, y, color, ...look }),
  dots: (x, y, color, look) => ({ type: "dots", x, y, color, ...look }),
  stems: (y, color, look) => ({ type: "stems", y, color, ...look }),
  band: (from, to, text) => ({ type: "band", from, to, text }),
  target: (x, text, dash = "2 3") => ({ type: "rule", x, color: MUTED, dash, text }),
  chance: (V, text = "chance") => ({ type: "rule", y: 1 / V, color: MUTED, dash: "2 3", text }),
  now: (x) => ({ type: "rule", x, width: 0.9, dash: "1 3" }),
  words: (y, text) => ({ type: "rule", y, opacity: 0, text }),
};

function niceTicks(from, to, count) {
  const raw = (to - from) / count;
  const unit = 10 ** Math.floor(Math.log10(raw));
  const step = unit * [1, 2, 5, 10].find((m) => m * unit >= raw * 0.85);
  const ticks = [];
  for (let x = Math.ceil(from / step - 1e-9) * step; x <= to + step * 1e-9; x += step)
    ticks.push(x);
  const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  return ticks.map((x) => [x, Math.abs(x) < step / 1e6 ? "0" : number(x, digits)]);
}

function logTicks(from, to, count) {
  const decades = Math.log10(to / from);
  const every = Math.max(1, Math.ceil(decades / count));
  const ticks = [];
  for (let p = Math.ceil(Math.log10(from) - 1e-9); p <= Math.log10(to) + 1e-9; p += every)
    ticks.push([10 ** p, p >= 0 && p < 4 ? integer(10 ** p) : power10(p)]);
  return ticks;
}

function scale({ from, to, log }, low, high) {
  const f = log ? Math.log : (x) => x;
  const [a, b] = [f(from), f(to)];
  return (x) => low + ((f(x) - a) / (b - a)) * (high - low);
}

const fix = (x) => x.toFixed(1);
const escape = (text) => String(text).replace(/[&<>"]/g, (c) => `&#${c.charCodeAt(0)};`);

/**
 * Draw one picture into an `<svg>` whose `size` in pixels is known: asking for it here would lay
 * out the page once for every picture.
 *
 * `axes` = {x, y}: {from, to, label, log, ticks: [[value, text], ...] or a count}; `layers` are
 * drawn in order; `label` is the text alternative.
 */
export function plot(svg, { x, y, layers, label }) {
  const [width, height] = svg.size;
  const [left, right] = [ROOM.left, width - ROOM.right];
  const [top, bottom] = [ROOM.top, height - ROOM.bottom];
  const [sx, sy] = [scale(x, left, right), scale(y, bottom, top)];
  const frame = { sx, sy, left, right, top, bottom };
  const ticks = ({ from, to, log, ticks: wanted }, pixels) => {
    if (Array.isArray(wanted)) return wanted;
    return (log ? logTicks : niceTicks)(from, to, wanted || Math.max(2, Math.round(pixels / 70)));
  };
  const out = [];
  for (const [value, text] of ticks(y, (bottom - top) * 1.5)) {
    const v = fix(sy(value));
    out.push(`<path class="lx-grid" d="M${left} ${v}H${right}"/>`);
    out.push(`<text x="${left - 7}" y="${v}" dy=".32em" text-anchor="end">${text}</text>`);
  }
  for (const [value, text] of ticks(x, right - left)) {
    const v = fix(sx(value));
    out.push(`<path class="lx-axis" d="M${v} ${bottom}v4"/>`);
    out.push(`<text x="${v}" y="${bottom + 17}" text-anchor="middle">${text}</text>`);
  }
  out.push(`<path class="lx-axis" d="M${left} ${bottom}H${right}"/>`);
  const clip = `lx-clip-${svg.dataset.key}`;
  const inside = `M${left - 4} ${top - 6}H${right + 4}V${bottom + 4}H${left - 4}z`;
  out.push(`<clipPath id="${clip}"><path d="${inside}"/></clipPath>`);
  out.push(`<g clip-path="url(#${clip})">`);
  out.push(...layers.map((layer) => MARKS[layer.type](layer, frame)), "</g>");
  out.push(...layers.map((layer) => (layer.text ? note(layer, frame) : "")));
  const name = (text, place) =>
    out.push(`<text class="lx-label" text-anchor="middle" ${place}>${escape(text)}</text>`);
  name(x.label, `x="${(left + right) / 2}" y="${height - 5}"`);
  name(y.label, `transform="translate(12 ${(top + bottom) / 2}) rotate(-90)"`);
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("aria-label", label);
  svg.innerHTML = out.join("");
}

function stroke({ color = "currentColor", width = 1.8, opacity = 1, dash = "none" }) {
  const style = `stroke:${color};stroke-width:${width};opacity:${opacity};stroke-dasharray:${dash}`;
  return `fill="none" stroke-linejoin="round" style="${style}"`;
}

const MARKS = {
  /** A line through (x, y); values that are not finite interrupt it. */
  line(layer, { sx, sy }) {
    let pen = "M";
    let path = "";
    for (let i = 0; i < layer.y.length; i++) {
      const at = layer.x ? layer.x[i] : i;
      if (!Number.isFinite(layer.y[i])) pen = "M";
      else {
        path += `${pen}${fix(sx(at))} ${fix(sy(layer.y[i]))}`;
        pen = "L";
      }
    }
    return `<path d="${path}" ${stroke(layer)}/>`;
  },
  /** Vertical bars from the axis; thin ones become stems. */
  stems(layer, { sx, sy, left, right }) {
    const width = Math.max(1, Math.min(14, ((right - left) / layer.y.length) * 0.72));
    const foot = fix(sy(0));
    let path = "";
    for (let i = 0; i < layer.y.length; i++)
      path += `M${fix(sx(layer.x ? layer.x[i] : i))} ${foot}V${fix(sy(layer.y[i]))}`;
    return `<path d="${path}" ${stroke({ ...layer, width })}/>`;
  },
  dots(layer, { sx, sy }) {
    const { color = "currentColor", r = 3, opacity = 1, hollow } = layer;
    const fill = hollow ? `fill:var(--lx-paper);stroke:${color};stroke-width:1.6` : `fill:${color}`;
    const parts = Array.from(layer.y, (v, i) =>
      Number.isFinite(v)
        ? `<circle cx="${fix(sx(layer.x ? layer.x[i] : i))}" cy="${fix(sy(v))}" r="${r}"/>`
        : "",
    );
    return `<g style="${fill};opacity:${opacity}">${parts.join("")}</g>`;
  },
  /** A straight line across the picture at one x or y. */
  rule(layer, { sx, sy, left, right, top, bottom }) {
    const path =
      layer.x !== undefined
        ? `M${fix(sx(layer.x))} ${top - 4}V${bottom}`
        : `M${left} ${fix(sy(layer.y))}H${right}`;
    return `<path d="${path}" ${stroke({ width: 1.1, dash: "5 4", ...layer })}/>`;
  },
  /** A shaded range of x. */
  band(layer, { sx, top, bottom }) {
    const [a, b] = [sx(layer.from), Math.max(sx(layer.from), sx(layer.to))].map(fix);
    return `<path class="lx-band" d="M${a} ${top - 4}H${b}V${bottom}H${a}z"/>`;
  },
  /** What lies between two lines over the same x. */
  range(layer, { sx, sy }) {
    const { x, low, high, color } = layer;
    const at = (y) => (v, i) => `${fix(sx(v))} ${fix(sy(y[i]))}`;
    const path = [...x.map(at(low)), ...x.map(at(high)).reverse()];
    return `<path d="M${path.join("L")}Z" style="fill:${color};opacity:0.16"/>`;
  },
  /**
   * A grid of cells: `values[row * columns + column]` in 0..1, NaN leaves a cell out. Cells of one
   * shade, to a hundredth, are one path: a map of 128 tokens must redraw while a reader drags.
   */
  cells(layer, { sx, sy }) {
    const { columns, values, color } = layer;
    const edges = (s, n) => Array.from({ length: n + 1 }, (_, i) => Math.round(s(i - 0.5)));
    const [x, y] = [edges(sx, columns), edges(sy, values.length / columns)];
    const paths = new Map();
    values.forEach((v, i) => {
      if (!(v >= 0.005)) return;
      const [column, line] = [i % columns, Math.floor(i / columns)];
      const [left, top] = [x[column], Math.min(y[line], y[line + 1])];
      const [width, height] = [x[column + 1] - left, Math.abs(y[line + 1] - y[line])];
      const shade = v.toFixed(2);
      paths.set(shade, `${paths.get(shade) || ""}M${left} ${top}h${width}v${height}h${-width}z`);
    });
    const parts = [...paths].map(([shade, d]) => `<path fill-opacity="${shade}" d="${d}"/>`);
    return `<g style="fill:${color}">${parts.join("")}</g>`;
  },
};

/** Words beside a rule, a band or the last point of a line. */
function note(layer, { sx, sy, left, right, top }) {
  const color = layer.color && layer.type !== "band" ? layer.color : "var(--lx-muted)";
  let [x, y, anchor] = [right - 2, top + 8, "end"];
  if (layer.type === "band")
    [x, y, anchor] = [Math.max(sx(layer.from), left) + 4, top + 8, "start"];
  else if (layer.type === "rule" && layer.x === undefined) y = sy(layer.y) - 5;
  else if (layer.type === "rule") {
    const at = sx(layer.x);
    const before = at > (left + right) / 2;
    [x, anchor, y] = [
      at + (before ? -5 : 5),
      before ? "end" : "start",
      top + 8 + 15 * (layer.line || 0),
    ];
  }
  const place = `x="${fix(x)}" y="${fix(y)}" text-anchor="${anchor}"`;
  return `<text class="lx-note" ${place} style="fill:${color}">${escape(layer.text)}</text>`;
}
