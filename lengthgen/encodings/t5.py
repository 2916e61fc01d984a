"""T5 relative bias: a learned number per bucket of offsets, buckets wider far away."""

from __future__ import annotations

from itertools import count

import torch
from jaxtyping import Float, Int, Int64
from torch import Tensor, nn

from lengthgen.encodings.base import PositionalEncoding

__all__ = ["T5Bias", "bucket_starts"]


def bucket_starts(buckets: int, max_distance: int) -> Int64[Tensor, " buckets"]:
    r"""Return the smallest offset in each bucket.

    The first $E = B/2$ buckets hold one offset each. Bucket $E + m$ starts at the smallest $n$
    with $n \geq E\, (D/E)^{m/(B-E)}$, $D$ = `max_distance`: boundaries are equidistant in the
    logarithm. Compared as integers, $n^{B-E} E^m \geq D^m E^{B-E}$, so that no rounding of a
    logarithm decides.

    Args:
        buckets: $B$, even and at least 2.
        max_distance: $D > E$; offsets from here on share the last bucket.

    Raises:
        ValueError: `buckets` odd or below 2, or `max_distance` not above half of it.

    Source: Raffel et al. (2020), section 2.1 with their code, the unidirectional case.

    Example:
        >>> bucket_starts(8, 32)
        tensor([ 0,  1,  2,  3,  4,  7, 12, 20])
    """
    if buckets < 2 or buckets % 2:
        raise ValueError(f"buckets={buckets} is not allowed: it must be even and at least 2")
    exact = wide = buckets // 2
    if max_distance <= exact:
        raise ValueError(
            f"max_distance={max_distance} is not allowed: above {exact}, half of the buckets"
        )
    starts = list(range(exact))
    for m in range(wide):
        least = max_distance**m * exact**wide
        guess = max(exact, int(exact * (max_distance / exact) ** (m / wide)) - 1)
        starts.append(next(n for n in count(guess) if n**wide * exact**m >= least))
    return torch.tensor(starts)


class T5Bias(PositionalEncoding):
    r"""Add a learned number $\beta_{h, \mathrm{bucket}(i - j)}$ to the logit of head $h$.

    Every offset beyond `max_distance` has the bias of the last bucket; keys after the query,
    which a causal head never sees, that of offset 0.

    Args:
        n_heads: number of heads.
        generator: source of the initial table.
        buckets: number of buckets, see `bucket_starts`.
        max_distance: offset at which the last bucket takes over, see `bucket_starts`.
        std: standard deviation of the initial table.

    Raises:
        ValueError: what `bucket_starts` refuses.

    Source: Raffel et al. (2020), section 2.1.
    """

    name = "t5"

    def __init__(
        self,
        n_heads: int,
        generator: torch.Generator,
        buckets: int = 32,
        max_distance: int = 128,
        std: float = 0.02,
    ) -> None:
        super().__init__()
        self.starts = bucket_starts(buckets, max_distance)
        self.table = nn.Parameter(std * torch.randn(n_heads, buckets, generator=generator))

    def bucket(self, offset: Int[Tensor, "query key"]) -> Int64[Tensor, "query key"]:
        """Return the bucket of each offset: the last one that starts at or before it."""
        return torch.bucketize(offset.clamp(min=0), self.starts.to(offset.device)[1:], right=True)

    def bias(
        self, query_positions: Int[Tensor, " query"], key_positions: Int[Tensor, " key"]
    ) -> Float[Tensor, "heads query key"]:
        """Look up the bucket of each offset."""
        return self.table[:, self.bucket(query_positions[:, None] - key_positions)]
