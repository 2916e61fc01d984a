// The linear head: descent in closed form, by its singular values.

/** `linear.scaled_midpoints`: n frequencies evenly placed in (0, top pi). */
export function scaledMidpoints(count, top) {
  return Float64Array.from({ length: count }, (_, i) => (Math.PI * top * (i + 0.5)) / count);
}

/** Diagonal of `linear.loss_metric`: the share of training lengths that hold each offset. */
export function lossMetric(lengths = TRAINING_LENGTHS) {
  return Float64Array.from(
    { length: Math.max(...lengths) },
    (_, D) => lengths.filter((n) => n > D).length / lengths.length,
  );
}

/** Singular values and vectors of a matrix no taller than wide (one-sided Jacobi). */
export function singularValues(matrix) {
  const [n, m] = matrix.shape;
  const rows = Array.from({ length: n }, (_, i) =>
    Float64Array.from(matrix.subarray(i * m, (i + 1) * m)),
  );
  const left = Array.from({ length: n }, (_, i) =>
    Float64Array.from({ length: n }, (_, j) => +(i === j)),
  );
  for (let sweep = 0, moved = true; moved && sweep < 60; sweep++) {
    moved = false;
    for (let p = 0; p < n; p++)
      for (let q = p + 1; q < n; q++) {
        const [a, b, c] = [dot(rows[p], rows[p]), dot(rows[q], rows[q]), dot(rows[p], rows[q])];
        if (Math.abs(c) <= 1e-15 * Math.sqrt(a * b)) continue;
        moved = true;
        const zeta = (b - a) / (2 * c);
        const t = (zeta < 0 ? -1 : 1) / (Math.abs(zeta) + Math.hypot(1, zeta));
        const cos = 1 / Math.hypot(1, t);
        for (const [x, y] of [
          [rows[p], rows[q]],
          [left[p], left[q]],
        ])
          for (let i = 0; i < x.length; i++) {
            const [u, v] = [x[i], y[i]];
            x[i] = cos * (u - t * v);
            y[i] = cos * (v + t * u);
          }
      }
  }
  const s = rows.map((r) => Math.sqrt(dot(r, r)));
  return { s, left, right: rows.map((r, i) => r.map((x) => x / s[i])) };
}

/** Descent of the linear head from zero, in closed form (`linear.descent_closed_form`). */
export class LinearTrajectory {
  constructor(frequencies, offset, lengths = TRAINING_LENGTHS) {
    this.frequencies = frequencies;
    this.n = frequencies.length;
    this.span = Math.max(...lengths);
    this.metric = lossMetric(lengths);
    const design = new Float64Array(this.span * 2 * this.n);
    for (let D = 0; D < this.span; D++)
      for (let f = 0; f < this.n; f++) {
        design[D * 2 * this.n + f] = Math.sqrt(this.metric[D]) * Math.cos(frequencies[f] * D);
        design[D * 2 * this.n + this.n + f] =
          Math.sqrt(this.metric[D]) * Math.sin(frequencies[f] * D);
      }
    design.shape = [this.span, 2 * this.n];
    const { s, left, right } = singularValues(design);
    Object.assign(this, { s, right });
    this.error = left.map((u) => u[offset] * Math.sqrt(this.metric[offset]));
    this.stepSize = 1 / Math.max(...s) ** 2; // half of `linear.largest_step`
  }

  /** Coefficients after some steps; `Infinity` gives the least-norm interpolant. */
  at(steps) {
    const re = new Float64Array(this.n);
    const im = new Float64Array(this.n);
    this.s.forEach((s, i) => {
      const shrink = Math.min(this.stepSize * s * s, 1);
      const learned = steps === 0 ? 0 : shrink === 1 ? 1 : -Math.expm1(steps * Math.log1p(-shrink));
      const gain = (learned / s) * this.error[i];
      for (let f = 0; f < this.n; f++) {
        re[f] += gain * this.right[i][f];
        im[f] += gain * this.right[i][this.n + f];
      }
    });
    return { re, im };
  }

  /** `linear.squared_loss` of a kernel on the training offsets. */
  loss(values, offset) {
    let sum = 0;
    for (let D = 0; D < this.span; D++)
      sum += (this.metric[D] * (values[D] - +(D === offset)) ** 2) / 2;
    return sum;
  }
}

/** `readout.sampled_accuracy`: how often the class of largest weight is the target's. */
export function sampledAccuracy(weights, offset, length, vocabulary, sequences, seed) {
  const random = uniform(seed);
  const mass = new Float64Array(vocabulary);
  let right = 0;
  for (let n = 0; n < sequences; n++) {
    mass.fill(0);
    let target = 0;
    for (let D = 0; D < length; D++) {
      const token = Math.floor(random() * vocabulary);
      if (D === offset) target = token;
      mass[token] += weights[D];
    }
    right += argmax(mass) === target;
  }
  return right / sequences;
}
