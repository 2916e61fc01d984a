// A linear recurrent model of n states, h(D) = C A^D B, and its descent. Its parameters stand in
// one row, A first (row by row), then B and C, as in `recurrence.Recurrence.parameters`.

const CEILING = 1e30;
const cut = (x) => Math.min(CEILING, Math.max(-CEILING, x));

/** Parameters of N(0, std^2 / n), as `recurrence.initialize` (other numbers). */
export function drawRecurrence(width, std, seed) {
  const draw = normal(uniform(seed));
  const scale = std / Math.sqrt(width);
  return Float64Array.from({ length: width * (width + 2) }, () => scale * draw());
}

/** A, B and C. */
export function recurrenceParts(parameters, width) {
  const square = width * width;
  const A = parameters.subarray(0, square);
  A.shape = [width, width];
  return [A, parameters.subarray(square, square + width), parameters.subarray(square + width)];
}

/** out = A x. */
function times(A, x, out) {
  const n = x.length;
  for (let i = 0, k = 0; i < n; i++) {
    let sum = 0;
    for (let j = 0; j < n; j++, k++) sum += A[k] * x[j];
    out[i] = sum;
  }
}

/** out = A^T x. */
function timesTransposed(A, x, out) {
  const n = x.length;
  out.fill(0);
  for (let i = 0, k = 0; i < n; i++) {
    const a = x[i];
    for (let j = 0; j < n; j++, k++) out[j] += A[k] * a;
  }
}

/** `recurrence.response`: h(D) below `length`, cut at a ceiling. */
export function response(parameters, width, length) {
  const [A, B, C] = recurrenceParts(parameters, width);
  let [state, next] = [B.slice(), new Float64Array(width)];
  const out = new Float64Array(length);
  for (let D = 0; D < length; D++) {
    out[D] = cut(dot(C, state));
    times(A, state, next);
    for (let i = 0; i < width; i++) next[i] = cut(next[i]);
    [state, next] = [next, state];
  }
  return out;
}

/** `recurrence.descend` of one model: a step that raises the loss is taken back, and halved. */
export class RecurrenceDescent {
  constructor(parameters, width, offset, lengths = TRAINING_LENGTHS) {
    Object.assign(this, { width, offset, parameters, stepSize: 1 });
    this.weight = lossMetric(lengths);
    const rows = () => Array.from(this.weight, () => new Float64Array(width));
    Object.assign(this, { states: rows(), adjoints: rows() });
    this.pull = new Float64Array(this.weight.length);
    Object.assign(this, this.look(parameters));
  }

  /** The loss and its gradient: one pass forward in time, one backward. */
  look(parameters) {
    const { width, offset, weight, states, adjoints, pull } = this;
    const [A, B, C] = recurrenceParts(parameters, width);
    const gradient = new Float64Array(parameters.length);
    const [toA, toB, toC] = recurrenceParts(gradient, width);
    const last = weight.length - 1;
    let loss = 0;
    states[0].set(B);
    for (let D = 0; D <= last; D++) {
      if (D > 0) times(A, states[D - 1], states[D]);
      const residual = dot(C, states[D]) - +(D === offset);
      pull[D] = weight[D] * residual;
      loss += (pull[D] * residual) / 2;
      for (let i = 0; i < width; i++) toC[i] += pull[D] * states[D][i];
    }
    for (let D = last; D >= 0; D--) {
      if (D === last) adjoints[D].fill(0);
      else timesTransposed(A, adjoints[D + 1], adjoints[D]);
      for (let i = 0; i < width; i++) adjoints[D][i] += pull[D] * C[i];
    }
    toB.set(adjoints[0]);
    for (let D = 0; D < last; D++) {
      const [adjoint, state] = [adjoints[D + 1], states[D]];
      for (let i = 0, k = 0; i < width; i++) {
        const a = adjoint[i];
        for (let j = 0; j < width; j++, k++) toA[k] += a * state[j];
      }
    }
    return { loss, gradient };
  }

  step() {
    const { parameters, gradient } = this;
    const size = Math.sqrt(dot(gradient, gradient)) || Number.MIN_VALUE;
    const most = (0.05 * Math.sqrt(dot(parameters, parameters))) / size;
    const rate = Math.min(this.stepSize, most);
    const there = parameters.map((x, i) => x - rate * gradient[i]);
    const found = this.look(there);
    const lower = found.loss <= this.loss;
    if (lower) Object.assign(this, { parameters: there, ...found });
    this.stepSize = lower ? rate * 1.1 : rate / 2;
  }
}

/** Participation ratio of the squared singular values, and these values, the largest first. */
export function effectiveRank(matrix) {
  const s = Float64Array.from(singularValues(matrix).s).sort().reverse();
  const energy = s.map((x) => x * x);
  return { s, rank: energy.reduce((a, b) => a + b) ** 2 / dot(energy, energy) };
}

/** Largest size of an eigenvalue: the root of the size of A^(2^k), by squaring (Gelfand). */
export function spectralRadius(matrix) {
  let [power, log] = [matrix, 0];
  for (let k = 0; k < 40; k++) {
    const size = Math.sqrt(dot(power, power));
    if (size === 0) return 0;
    log += Math.log(size) / 2 ** k;
    const unit = power.map((x) => x / size);
    unit.shape = matrix.shape;
    power = matmul(unit, unit);
  }
  return Math.exp(log);
}
