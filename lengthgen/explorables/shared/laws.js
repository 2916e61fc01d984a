// The dilution laws: attention and accuracy at any length, without drawing a sequence.

/**
 * Offsets that stand for all offsets below `limit`: each one below `exact`, then evenly placed ones
 * in every octave, each with the number of offsets it stands for.
 */
export function representativeOffsets(limit, exact = 256, perOctave = 64) {
  const offsets = [];
  const counts = [];
  for (let D = 0; D < Math.min(limit, exact); D++) {
    offsets.push(D);
    counts.push(1);
  }
  for (let start = exact; start < limit; start *= 2) {
    const stop = Math.min(2 * start, limit);
    const cells = Math.min(perOctave, stop - start);
    for (let i = 0; i < cells; i++) {
      const [low, high] = [0, 1].map((k) => Math.floor(start + ((stop - start) * (i + k)) / cells));
      // A place inside the cell that follows no wave: the golden ratio's multiples.
      offsets.push(low + Math.floor(((i * 0.6180339887498949) % 1) * (high - low)));
      counts.push(high - low);
    }
  }
  return { offsets: Float64Array.from(offsets), counts: Float64Array.from(counts) };
}

/**
 * `dilution.attention_law`, averaged over query and target tokens.
 *
 * `weights` is e^T at the offsets, index (D V + a) V + b; `lengths` rise. A length takes the
 * offsets below it. The integral is the trapezoidal rule in log t with step log 2, where each
 * power e^(-t w) is the square of the one before.
 */
export function attentionLaw(weights, vocabulary, { offsets, counts }, offset, lengths) {
  const pairs = vocabulary ** 2;
  const h = Math.LN2;
  const tail = 10; // as in the package: the integral starts at e^-tail / E[Z]
  const low = new Float64Array(vocabulary);
  const high = new Float64Array(vocabulary);
  for (let a = 0; a < vocabulary; a++) {
    let [most, least] = [0, Infinity]; // of the normalizer's two terms that are given
    for (let y = 0; y < vocabulary; y++) {
      const given = weights[offset * pairs + a * vocabulary + y] + weights[a * vocabulary + a];
      most = Math.max(most, given);
      least = Math.min(least, given);
    }
    let others = 0;
    for (let i = 0; i < offsets.length; i++) {
      if (offsets[i] === 0 || offsets[i] === offset) continue;
      const first = i * pairs + a * vocabulary;
      for (let w = first; w < first + vocabulary; w++) others += counts[i] * weights[w];
    }
    low[a] = -Math.log(most + others / vocabulary) - tail;
    high[a] = Math.log(40) - Math.log(least);
  }
  const n = Math.ceil(Math.max(...high.map((x, a) => (x - low[a]) / h))) + 1;
  const logProduct = new Float64Array(vocabulary * n);
  const mean = new Float64Array(n);
  const result = [];
  let i = 0;
  for (const length of lengths) {
    for (; i < offsets.length && offsets[i] < length; i++) {
      if (offsets[i] === 0 || offsets[i] === offset) continue;
      for (let a = 0; a < vocabulary; a++) {
        mean.fill(0);
        const t = Math.exp(low[a]);
        for (let b = 0, w = i * pairs + a * vocabulary; b < vocabulary; b++, w++) {
          let decay = Math.exp(-t * weights[w]);
          for (let m = 0; m < n && decay > 1e-300; m++) {
            mean[m] += decay;
            decay *= decay;
          }
        }
        for (let m = 0; m < n; m++)
          logProduct[a * n + m] += counts[i] * Math.log(mean[m] / vocabulary);
      }
    }
    result.push(integrate());
  }
  return Float64Array.from(result);

  function integrate() {
    let sum = 0;
    for (let a = 0; a < vocabulary; a++) {
      const own = weights[a * vocabulary + a];
      for (let y = 0; y < vocabulary; y++) {
        const target = weights[offset * pairs + a * vocabulary + y];
        const first = Math.exp(low[a]);
        let integral = (h * target * first) / Math.expm1(h); // below, it is e^T t: a series
        for (let m = 0, t = first; m < n; m++, t *= 2)
          integral += h * target * t * Math.exp(logProduct[a * n + m] - t * (target + own));
        sum += integral;
      }
    }
    return sum / vocabulary ** 2;
  }
}

/**
 * The accuracy law (`dilution.mass_model` and `predicted_accuracy`): the largest offsets drawn
 * exactly, the rest Gaussian with exact mean and covariance. `draws` is for each query token; a
 * page takes fewer than the package.
 */
export function accuracyLaw(
  weights,
  vocabulary,
  { offsets, counts },
  offset,
  lengths,
  readout,
  draws,
  aliases = 16,
) {
  const V = vocabulary;
  const pairs = V * V;
  const correct = new Float64Array(lengths.length);
  for (let a = 0; a < V; a++) {
    const sum = new Float64Array(V);
    const product = new Float64Array(pairs); // sum_D w_D w_D^T
    const square = new Float64Array(V);
    let chosen = []; // the aliases so far: index and second moment
    let i = 0;
    lengths.forEach((length, column) => {
      for (; i < offsets.length && offsets[i] < length; i++) {
        if (offsets[i] === 0 || offsets[i] === offset) continue;
        const w = weights.subarray(i * pairs + a * V, i * pairs + (a + 1) * V);
        addTo(sum, square, product, w, counts[i]);
        if (counts[i] === 1) chosen.push([dot(w, w), w]);
      }
      chosen = chosen.sort((x, y) => y[0] - x[0]).slice(0, aliases);
      const bulk = { sum: sum.slice(), square: square.slice(), product: product.slice() };
      for (const [, w] of chosen) addTo(bulk.sum, bulk.square, bulk.product, w, -1);
      correct[column] += answersRight(a, chosen, bulk);
    });
  }
  return correct.map((x) => x / V);

  function addTo(sum, square, product, w, count) {
    for (let b = 0; b < V; b++) {
      sum[b] += count * w[b];
      square[b] += count * w[b] * w[b];
      for (let c = 0; c <= b; c++) product[b * V + c] += count * w[b] * w[c];
    }
  }

  function answersRight(a, chosen, bulk) {
    const covariance = bulk.product.map((x) => -x / pairs);
    for (let b = 0; b < V; b++) covariance[b * V + b] += bulk.square[b] / V;
    const root = cholesky(covariance, V);
    const { normals, tokens } = lawDraws(a, V, draws, aliases);
    const target = weights.subarray(offset * pairs + a * V);
    const mass = new Float64Array(V);
    let right = 0;
    for (let draw = 0; draw < draws; draw++) {
      const y = Math.floor(((draw + 0.5) / draws) * V);
      for (let b = 0; b < V; b++) {
        let sum = bulk.sum[b] / V;
        for (let c = 0; c <= b; c++) sum += root[b * V + c] * normals[draw * V + c];
        mass[b] = sum;
      }
      mass[a] += weights[a * V + a];
      mass[y] += target[y];
      for (let m = 0; m < chosen.length; m++) {
        const b = tokens[draw * aliases + m];
        mass[b] += chosen[m][1][b];
      }
      right += best(mass, readout) === y;
    }
    return right / draws;
  }

  function best(mass, readout) {
    let top = -Infinity;
    let at = 0;
    for (let v = 0; v < V; v++) {
      let value = 0;
      for (let b = 0; b < V; b++) value += mass[b] * readout[b * V + v];
      if (value > top) {
        top = value;
        at = v;
      }
    }
    return at;
  }
}

/** Common random numbers of `accuracyLaw` for query token `a`: normals and aliases' tokens. */
const lawDraws = remember((a, vocabulary, draws, aliases) => {
  const random = uniform(a + 1);
  const gauss = normal(random);
  return {
    normals: Float64Array.from({ length: draws * vocabulary }, gauss),
    tokens: Uint8Array.from({ length: draws * aliases }, () => random() * vocabulary),
  };
});

/** Lower triangular root of a positive semidefinite matrix; rounding below zero counts as zero. */
export function cholesky(matrix, n) {
  const root = new Float64Array(n * n);
  for (let j = 0; j < n; j++) {
    let pivot = matrix[j * n + j];
    for (let k = 0; k < j; k++) pivot -= root[j * n + k] ** 2;
    if (pivot <= 1e-14 * matrix[j * n + j]) continue;
    root[j * n + j] = Math.sqrt(pivot);
    for (let i = j + 1; i < n; i++) {
      let value = matrix[i * n + j];
      for (let k = 0; k < j; k++) value -= root[i * n + k] * root[j * n + k];
      root[i * n + j] = value / root[j * n + j];
    }
  }
  return root;
}
