// Heads that read tokens: rotary and learned absolute, as exported by `explorables.heads`.

/** Turn every channel pair of a vector by its frequency times the position (interleaved). */
export function rotate(x, position, frequencies, singlePrecision = false) {
  const out = new Float64Array(x.length);
  for (let f = 0; f < frequencies.length; f++) {
    const angle = singlePrecision
      ? Math.fround(position * Math.fround(frequencies[f]))
      : position * frequencies[f];
    const [cos, sin, re, im] = [Math.cos(angle), Math.sin(angle), x[2 * f], x[2 * f + 1]];
    out[2 * f] = re * cos - im * sin;
    out[2 * f + 1] = re * sin + im * cos;
  }
  return out;
}

/** `carrier.token_coefficients`: c_f(a, b) = conj(q_f(a)) k_f(b) / sqrt(d), real then imaginary. */
export function tokenCoefficients(query, key) {
  const [vocabulary, d] = query.shape;
  const count = d / 2;
  const re = new Float64Array(vocabulary * vocabulary * count);
  const im = new Float64Array(re.length);
  for (let a = 0, i = 0; a < vocabulary; a++)
    for (let b = 0; b < vocabulary; b++)
      for (let f = 0; f < count; f++, i++) {
        const [qr, qi] = [query[a * d + 2 * f], query[a * d + 2 * f + 1]];
        const [kr, ki] = [key[b * d + 2 * f], key[b * d + 2 * f + 1]];
        re[i] = (qr * kr + qi * ki) / Math.sqrt(d);
        im[i] = (qr * ki - qi * kr) / Math.sqrt(d);
      }
  return { re, im, count, pairs: vocabulary * vocabulary };
}

/** `dilution.offset_logits`: T(a, b, D) at the given offsets, index (D V + a) V + b. */
export function offsetLogits(query, key, frequencies, offsets) {
  const { re, im, count, pairs } = tokenCoefficients(query, key);
  const out = new Float64Array(offsets.length * pairs);
  const cos = new Float64Array(count);
  const sin = new Float64Array(count);
  for (let i = 0, o = 0; i < offsets.length; i++) {
    for (let f = 0; f < count; f++) {
      cos[f] = Math.cos(frequencies[f] * offsets[i]);
      sin[f] = Math.sin(frequencies[f] * offsets[i]);
    }
    for (let pair = 0; pair < pairs; pair++, o++) {
      let sum = 0;
      for (let f = 0, c = pair * count; f < count; f++, c++) sum += re[c] * cos[f] + im[c] * sin[f];
      out[o] = sum;
    }
  }
  return out;
}

/** A rotary head of tokens at the end of a sequence: logits by offset, readout by token. */
export class RotaryHead {
  constructor({ query, key, readout }) {
    Object.assign(this, { query, key, readout });
    [this.vocabulary, this.d] = query.shape;
    this.frequencies = rotaryFrequencies(this.d / 2);
    this.logits = new Float64Array(0);
  }

  /** Fill `out` with the logits of one sequence; `tokens` count backwards from the query. */
  scores(tokens, length, out) {
    const pairs = this.vocabulary ** 2;
    if (this.logits.length < length * pairs) {
      const offsets = Float64Array.from({ length: Math.max(length, 64) * 2 }, (_, D) => D);
      this.logits = offsetLogits(this.query, this.key, this.frequencies, offsets);
    }
    const first = tokens[0] * this.vocabulary;
    for (let D = 0; D < length; D++) out[D] = this.logits[D * pairs + first + tokens[D]];
  }

  /** Add what attention `weight` on the key at offset D contributes to the answer's logits. */
  read(tokens, length, weights, answer) {
    readTokens(this.readout, this.vocabulary, tokens, length, weights, answer);
  }
}

function readTokens(readout, vocabulary, tokens, length, weights, answer) {
  const mass = new Float64Array(vocabulary);
  for (let D = 0; D < length; D++) mass[tokens[D]] += weights[D];
  for (let b = 0; b < vocabulary; b++)
    for (let v = 0; v < vocabulary; v++) answer[v] += mass[b] * readout[b * vocabulary + v];
}

// ---------------------------------------------------------------- learned absolute heads

/** A head with a learned position table: `pinning.logit_parts`, and a readout by token and row. */
export class LearnedHead {
  constructor({ token, form, output, rows }) {
    Object.assign(this, { token, form, output, rows });
    [this.vocabulary, this.d] = token.shape;
    this.reach = rows.shape[0];
    this.query = matmul(token, form); // e_a M, (V, d)
    this.contentContent = matmul(this.query, transpose(token)); // (V, V)
    this.readout = matmul(token, output);
    this.placeRows();
  }

  /** Compute what depends on the position table. */
  placeRows() {
    this.contentPosition = matmul(this.query, transpose(this.rows)); // (V, rows)
    this.positionReadout = matmul(this.rows, this.output);
    this.length = 0;
  }

  /** The head with row `source` copied onto row `destination`, or both exchanged. */
  withRows(operation, source, destination) {
    if (operation === "none" || source === destination) return this;
    const rows = this.rows.slice();
    rows.shape = this.rows.shape;
    const at = (index) => this.rows.subarray(index * this.d, (index + 1) * this.d);
    rows.set(at(source), destination * this.d);
    if (operation === "exchange") rows.set(at(destination), source * this.d);
    return new LearnedHead({ ...this, rows });
  }

  /** Position content and position position of the query that ends a sequence. */
  placeQuery(length) {
    if (this.length === length) return;
    this.length = length;
    const p = this.rows.subarray((length - 1) * this.d, length * this.d);
    p.shape = [1, this.d];
    const moved = matmul(p, this.form);
    this.positionContent = matmul(moved, transpose(this.token));
    this.positionPosition = new Float64Array(length);
    for (let j = 0; j < length; j++)
      this.positionPosition[j] = dot(moved, this.rows.subarray(j * this.d, (j + 1) * this.d));
  }

  /** As `RotaryHead.scores`. */
  scores(tokens, length, out) {
    this.placeQuery(length);
    const [a, v] = [tokens[0], this.vocabulary];
    for (let D = 0; D < length; D++) {
      const j = length - 1 - D;
      out[D] =
        this.contentContent[a * v + tokens[D]] +
        this.contentPosition[a * this.reach + j] +
        this.positionContent[tokens[D]] +
        this.positionPosition[j];
    }
  }

  /** As `RotaryHead.read`. */
  read(tokens, length, weights, answer) {
    readTokens(this.readout, this.vocabulary, tokens, length, weights, answer);
    for (let D = 0; D < length; D++)
      for (let v = 0, r = (length - 1 - D) * this.vocabulary; v < this.vocabulary; v++, r++)
        answer[v] += weights[D] * this.positionReadout[r];
  }

  /** `pinning.content_profile`: b_j, the mean content's preference for each position. */
  contentProfile(length) {
    const out = new Float64Array(length);
    for (let a = 0; a < this.vocabulary; a++)
      for (let j = 0; j < length; j++)
        out[j] += this.contentPosition[a * this.reach + j] / this.vocabulary;
    return out;
  }
}

/** Attention weights by offset, and the answer's logits. */
export function attend(head, tokens, length) {
  const scores = new Float64Array(length);
  head.scores(tokens, length, scores);
  const weights = softmax(scores);
  const answer = new Float64Array(head.vocabulary);
  head.read(tokens, length, weights, answer);
  return { weights, answer };
}

// ---------------------------------------------------------------- exported heads

/** Head number `index` of exported rotary heads (`explorables.heads.rotary_heads`). */
export function rotaryHead(packed, index) {
  const [query, key, readout] = ["query", "key", "readout"].map((k) =>
    row(unpack(packed[k]), index),
  );
  return new RotaryHead({ query, key, readout });
}

/** Head number `index` of exported learned heads: its trained rows before the rows all share. */
export function learnedHead(packed, index) {
  const [token, form, output] = ["token", "form", "output"].map((k) =>
    row(unpack(packed[k]), index),
  );
  return new LearnedHead({ token, form, output, rows: positionRows(packed, index) });
}

/** A head's position table. */
export function positionRows(packed, index) {
  const [trained, shared] = [row(unpack(packed.trained), index), unpack(packed.untrained)];
  const rows = new Float64Array(trained.length + shared.length);
  rows.set(trained);
  rows.set(shared, trained.length);
  rows.shape = [trained.shape[0] + shared.shape[0], trained.shape[1]];
  return rows;
}

/** Mean attention by offset over random sequences of one length. */
export function meanAttention(head, length, sequences, seed = 1) {
  const random = uniform(seed);
  const scores = new Float64Array(length);
  const mean = new Float64Array(length);
  for (let n = 0; n < sequences; n++) {
    head.scores(randomTokens(length, head.vocabulary, random), length, scores);
    const weights = softmax(scores);
    for (let D = 0; D < length; D++) mean[D] += weights[D] / sequences;
  }
  return mean;
}
