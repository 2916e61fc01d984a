// The position-only head: its descent, and the early prediction beside it.

/** Queries and keys of N(0, std^2 sqrt(d)), as `position_head.initialize` (other numbers). */
export function drawPositionHead(frequencies, std, seed) {
  const draw = normal(uniform(seed));
  const scale = std * (2 * frequencies.length) ** 0.25;
  const part = () => Float64Array.from(frequencies, () => scale * draw());
  return { qr: part(), qi: part(), kr: part(), ki: part() };
}

/** `late_carrier.smallest_head`: the head of least norm with these coefficients. */
export function smallestHead({ re, im }) {
  const root = (2 * re.length) ** 0.25;
  const amplitude = Float64Array.from(re, (x, f) => Math.sqrt(Math.hypot(x, im[f])) * root);
  const angle = Float64Array.from(re, (x, f) => Math.atan2(im[f], x));
  return {
    qr: amplitude,
    qi: new Float64Array(re.length),
    kr: amplitude.map((x, f) => x * Math.cos(angle[f])),
    ki: amplitude.map((x, f) => x * Math.sin(angle[f])),
  };
}

/** `position_head.PositionHead.coefficients`. */
export function coefficients({ qr, qi, kr, ki }) {
  const n = qr.length;
  const root = Math.sqrt(2 * n);
  const [re, im] = [new Float64Array(n), new Float64Array(n)];
  for (let f = 0; f < n; f++) {
    re[f] = (qr[f] * kr[f] + qi[f] * ki[f]) / root;
    im[f] = (qr[f] * ki[f] - qi[f] * kr[f]) / root;
  }
  return { re, im };
}

/** `descent.descend` with rule `log_loss`: log loss falls on a clock that does not slow down. */
export class PositionDescent {
  constructor(frequencies, offset, head, { lengths = TRAINING_LENGTHS, stepSize = 0.5 } = {}) {
    Object.assign(this, { frequencies, offset, lengths, stepSize });
    this.n = frequencies.length;
    this.span = Math.max(...lengths);
    this.rootD = Math.sqrt(2 * this.n);
    const table = (wave) => {
      const out = new Float64Array(this.n * this.span);
      for (let f = 0; f < this.n; f++)
        for (let D = 0; D < this.span; D++) out[f * this.span + D] = wave(frequencies[f] * D);
      return out;
    };
    this.cos = table(Math.cos);
    this.sin = table(Math.sin);
    this.head = Object.fromEntries(Object.entries(head).map(([k, x]) => [k, Float64Array.from(x)]));
    this.early = new EarlyCarrier(this);
    for (const name of ["values", "error"]) this[name] = new Float64Array(this.span);
    for (const name of ["terms", "rates"]) this[name] = new Float64Array(lengths.length);
    this.attention();
  }

  /**
   * Compute kernel, error and log loss of the present head (`position_loss.Motion.error`).
   *
   * Lengths rise, so that the sum over a length's wrong offsets goes on where that of the length
   * before ended, and the weight of an offset is that of all lengths beyond it.
   */
  attention() {
    const { cos, sin, values, error, terms, rates, offset, lengths, span } = this;
    const { re, im } = coefficients(this.head);
    values.fill(0);
    for (let f = 0, i = 0; f < this.n; f++) {
      const c = re[f];
      const s = im[f];
      for (let D = 0; D < span; D++, i++) values[D] += c * cos[i] + s * sin[i];
    }
    const target = values[offset];
    let top = -Infinity;
    let sum = 0;
    for (let l = 0, D = 0; l < lengths.length; l++) {
      for (; D < lengths[l]; D++) {
        if (D === offset) continue;
        const x = values[D] - target;
        if (x > top) {
          sum = sum * Math.exp(top - x) + 1;
          top = x;
        } else sum += Math.exp(x - top);
      }
      const wrong = top + Math.log(sum);
      const loss = softplus(wrong);
      // Below -30 the series is exact to e^(2x) and cannot underflow.
      terms[l] = wrong < -30 ? wrong - Math.exp(wrong) / 2 : Math.log(loss);
      rates[l] = -loss;
    }
    const total = terms.reduce(logAddExp);
    error.fill(0);
    for (let l = lengths.length - 1, rate = -Infinity; l >= 0; l--) {
      rate = logAddExp(rate, rates[l] - total);
      for (let D = l ? lengths[l - 1] : 0; D < lengths[l]; D++) {
        if (D === offset) continue;
        error[D] = -Math.exp(values[D] - target + rate);
        error[offset] -= error[D];
      }
    }
    this.logLoss = total - Math.log(lengths.length);
  }

  /** Sum of squares in logit units, `PositionHead.size`. */
  size() {
    const { qr, qi, kr, ki } = this.head;
    return (dot(qr, qr) + dot(qi, qi) + dot(kr, kr) + dot(ki, ki)) / (2 * this.rootD);
  }

  step() {
    const { qr, qi, kr, ki } = this.head;
    const { error, cos, sin, span } = this;
    const eta = (this.stepSize * this.rootD) / (1 + this.size());
    this.early.advance(eta / Math.exp(this.logLoss));
    for (let f = 0; f < this.n; f++) {
      let gr = 0;
      let gi = 0;
      for (let D = 0, i = f * span; D < span; D++, i++) {
        gr += error[D] * cos[i];
        gi -= error[D] * sin[i];
      }
      gr *= eta / this.rootD;
      gi *= eta / this.rootD;
      const [a, b, c, d] = [qr[f], qi[f], kr[f], ki[f]];
      qr[f] += gr * c - gi * d;
      qi[f] += gr * d + gi * c;
      kr[f] += gr * a + gi * b;
      ki[f] += gr * b - gi * a;
    }
    this.attention();
  }
}

function softplus(x) {
  return Math.max(x, 0) + Math.log1p(Math.exp(-Math.abs(x)));
}

function logAddExp(a, b) {
  const top = Math.max(a, b);
  return top === -Infinity ? top : top + Math.log(Math.exp(a - top) + Math.exp(b - top));
}

/** `early_carrier.early_head` on a descent's clock: u grows, v decays, while g stands still. */
class EarlyCarrier {
  constructor({ frequencies, offset, lengths, head, rootD, n }) {
    Object.assign(this, { head: { ...head }, rootD, n });
    for (const name of ["qr", "qi", "kr", "ki"]) this.head[name] = head[name].slice();
    const g = growthRates(frequencies, offset, lengths);
    this.rate = Float64Array.from(g.re, (x, f) => Math.hypot(x, g.im[f]));
    this.turn = Float64Array.from(g.re, (x, f) => Math.atan2(g.im[f], x));
    this.grown = new Float64Array(n).fill(1);
    this.decayed = new Float64Array(n).fill(1);
  }

  advance(eta) {
    let most = 0;
    for (let f = 0; f < this.n; f++) {
      this.grown[f] *= 1 + (eta * this.rate[f]) / this.rootD;
      this.decayed[f] *= 1 - (eta * this.rate[f]) / this.rootD;
      most = Math.max(most, this.grown[f]);
    }
    if (most < 1e100) return;
    for (let f = 0; f < this.n; f++) {
      this.grown[f] *= 1e-100; // only the direction is wanted so late
      this.decayed[f] *= 1e-100;
    }
  }

  /** The predicted coefficients c_f, real and imaginary. */
  coefficients() {
    const { qr, qi, kr, ki } = this.head;
    const out = { qr: [], qi: [], kr: [], ki: [] };
    for (let f = 0; f < this.n; f++) {
      const [cos, sin] = [Math.cos(this.turn[f]), Math.sin(this.turn[f])];
      const [tr, ti] = [cos * kr[f] - sin * ki[f], sin * kr[f] + cos * ki[f]]; // e^{i theta} k
      const [ur, ui] = [(qr[f] + tr) * this.grown[f], (qi[f] + ti) * this.grown[f]];
      const [vr, vi] = [(qr[f] - tr) * this.decayed[f], (qi[f] - ti) * this.decayed[f]];
      const [dr, di] = [(ur - vr) / 2, (ui - vi) / 2];
      out.qr.push((ur + vr) / 2);
      out.qi.push((ui + vi) / 2);
      out.kr.push(cos * dr + sin * di);
      out.ki.push(cos * di - sin * dr);
    }
    return coefficients(
      Object.fromEntries(Object.entries(out).map(([k, x]) => [k, Float64Array.from(x)])),
    );
  }
}

/** `early_carrier.growth_rates`: the error's Fourier transform while attention is uniform. */
export function growthRates(frequencies, offset, lengths = TRAINING_LENGTHS) {
  const part = (wave) =>
    Float64Array.from(frequencies, (w) => {
      let mean = 0;
      for (const length of lengths)
        for (let D = 0; D < length; D++) mean += wave(w * D) / length / lengths.length;
      return wave(w * offset) - mean;
    });
  return { re: part(Math.cos), im: part((x) => -Math.sin(x)) };
}

/** kappa(K) / sum |c_f|: 1 where all waves are in phase at the target. */
export function alignment({ re, im }, frequencies, offset) {
  const total = re.reduce((sum, x, f) => sum + Math.hypot(x, im[f]), 0);
  return (
    re.reduce(
      (sum, x, f) =>
        sum + x * Math.cos(frequencies[f] * offset) + im[f] * Math.sin(frequencies[f] * offset),
      0,
    ) / total
  );
}
