// Plain numbers: packed data, random draws, small matrices, waves. Everything is float64.
// In all these files a function names its counterpart in the package; tests hold the two equal.

export const TRAINING_LENGTHS = [10, 11, 12, 13, 14, 15, 16];

// ---------------------------------------------------------------- data and random numbers

const unpacked = new WeakMap();

/** Read an array packed by `explorables.base.pack`: base64 of little-endian numbers. Once only. */
export function unpack(packed) {
  if (!unpacked.has(packed)) unpacked.set(packed, read(packed));
  return unpacked.get(packed);
}

function read({ dtype, shape, data }) {
  const text = atob(data);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  const types = { float32: Float32Array, float64: Float64Array, int32: Int32Array };
  const Type = { ...types, uint8: Uint8Array }[dtype];
  const array = Float64Array.from(new Type(bytes.buffer));
  array.shape = shape;
  return array;
}

/** Return entry `index` of an array's first axis. */
export function row(array, index) {
  const size = array.length / array.shape[0];
  const part = array.subarray(index * size, (index + 1) * size);
  part.shape = array.shape.slice(1);
  return part;
}

/** Uniform numbers in [0, 1) that depend on the seed alone (mulberry32). */
export function uniform(seed) {
  let state = (seed * 0x9e3779b1) >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let t = Math.imul(state ^ (state >>> 15), state | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}

/** Standard normal numbers from uniform ones (Box and Muller). */
export function normal(random) {
  return () => Math.sqrt(-2 * Math.log(1 - random())) * Math.cos(2 * Math.PI * random());
}

/** Tokens of one sequence, counted backwards from the query, as `task.TestSequences` does. */
export function randomTokens(length, vocabulary, random) {
  const tokens = new Uint8Array(length);
  for (let offset = 0; offset < length; offset++) tokens[offset] = random() * vocabulary;
  return tokens;
}

/** Remember the last `most` values of a function, by its arguments. */
export function remember(compute, most = 32) {
  const values = new Map();
  return (...key) => {
    const name = key.join();
    if (!values.has(name)) {
      if (values.size === most) values.delete(values.keys().next().value);
      values.set(name, compute(...key));
    }
    return values.get(name);
  };
}

// ---------------------------------------------------------------- small linear algebra

export function dot(a, b) {
  let sum = 0;
  for (let i = 0; i < a.length; i++) sum += a[i] * b[i];
  return sum;
}

/** Matrix product of row-major (n, k) and (k, m). */
export function matmul(a, b) {
  const [n, k] = a.shape;
  const m = b.shape[1];
  const out = new Float64Array(n * m);
  for (let i = 0; i < n; i++)
    for (let l = 0; l < k; l++) {
      const x = a[i * k + l];
      for (let j = 0; j < m; j++) out[i * m + j] += x * b[l * m + j];
    }
  out.shape = [n, m];
  return out;
}

export function transpose(a) {
  const [n, m] = a.shape;
  const out = new Float64Array(n * m);
  for (let i = 0; i < n; i++) for (let j = 0; j < m; j++) out[j * n + i] = a[i * m + j];
  out.shape = [m, n];
  return out;
}

/** Softmax of the first `n` entries. */
export function softmax(logits, n = logits.length) {
  let top = -Infinity;
  let total = 0;
  for (let i = 0; i < n; i++) top = Math.max(top, logits[i]);
  const out = new Float64Array(n);
  for (let i = 0; i < n; i++) total += out[i] = Math.exp(logits[i] - top);
  for (let i = 0; i < n; i++) out[i] /= total;
  return out;
}

export function argmax(values) {
  let best = 0;
  for (let i = 1; i < values.length; i++) if (values[i] > values[best]) best = i;
  return best;
}

/** Least and largest entry. */
export function extent(...arrays) {
  let low = Infinity;
  let high = -Infinity;
  for (const array of arrays)
    for (const value of array) {
      if (value < low) low = value;
      if (value > high) high = value;
    }
  return [low, high];
}

/** Whole numbers from `from` to `to` with even ratios, each once. */
export function geometric(from, to, count) {
  const all = Array.from({ length: count }, (_, i) =>
    Math.round(from * (to / from) ** (i / (count - 1))),
  );
  return [...new Set(all)];
}

// ---------------------------------------------------------------- waves

/** `encodings.rotary_frequencies`: b^(-2f/d), in radians per token. */
export function rotaryFrequencies(count, base = 10000) {
  return Float64Array.from({ length: count }, (_, f) => base ** (-f / count));
}

/** kappa(D) = Re sum_f c_f e^(-i w_f D) at offsets 0 .. n - 1. */
export function kernel({ re, im }, frequencies, n) {
  const out = new Float64Array(n);
  for (let f = 0; f < frequencies.length; f++) {
    if (re[f] === 0 && im[f] === 0) continue;
    for (let D = 0; D < n; D++)
      out[D] += re[f] * Math.cos(frequencies[f] * D) + im[f] * Math.sin(frequencies[f] * D);
  }
  return out;
}
