r"""The dilution law: what a relative head attends to and answers at any length, without sampling.

A relative head is a function of tokens and offset: $T(a, b, D)$ is the logit of query token a and
a key token b that stands D positions before the query, and key token b adds `readout[b]` to the
answer's logits. Tokens are independent and uniform. The query is the token at D = 0 itself, the
target the token at D = K. With $w_D = e^{T(a, t_D, D)}$ the attention on the target is $w_K / S$,
$S = \sum_{D < L} w_D$, and the answer reads the *mass* $M_b = \sum_D w_D [t_D = b]$ of each token.

- *Attention law*: $\mathbb{E}[w_K / S]$ is a one-dimensional integral (`attention_law`).
- *Accuracy law*: $M$ is a sum of independent terms, few of them large. Those few, the *aliases*,
  are drawn exactly, the rest is a Gaussian with their mean and covariance (`mass_model`,
  `predicted_accuracy`).
- *Bessel law*: $L\,\alpha(L)$ tends to a constant (`reach_constant`).

Everything here is ours; of the paper's dilution law only the name is known to us.
"""

from lengthgen.dilution.accuracy import Draws, mass_model, predicted_accuracy
from lengthgen.dilution.attention import (
    START_ERROR,
    TAIL,
    attention_law,
    kernel_attention,
    kernel_only,
    quadrature_error,
)
from lengthgen.dilution.bessel import mean_exponential, reach_bound, reach_constant, torus_mean
from lengthgen.dilution.heads import (
    aligned,
    offset_logits,
    rotary_coefficients,
    token_readouts,
    turned,
)
from lengthgen.dilution.measurement import Measured, half_accuracy_length, measure

__all__ = [
    "START_ERROR",
    "TAIL",
    "Draws",
    "Measured",
    "aligned",
    "attention_law",
    "half_accuracy_length",
    "kernel_attention",
    "kernel_only",
    "mass_model",
    "mean_exponential",
    "measure",
    "offset_logits",
    "predicted_accuracy",
    "quadrature_error",
    "reach_bound",
    "reach_constant",
    "rotary_coefficients",
    "token_readouts",
    "torus_mean",
    "turned",
]
