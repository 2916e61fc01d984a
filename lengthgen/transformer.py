"""The small decoder: pre-norm blocks of attention and MLP, causal, many models at once.

`TransformerStack.forward` is what trains. `TransformerStack.trace` is the same decoder written to
be read; it keeps the logits and attention weights of every layer and head. Tests hold both equal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int, Integer
from torch import Tensor
from torch.nn.functional import gelu, layer_norm, scaled_dot_product_attention

from lengthgen.stack import ModelConfig, ModelStack

__all__ = ["Trace", "TransformerConfig", "TransformerStack"]

LAYER_WEIGHTS = ("query", "key", "value", "output", "expand", "contract")
"""Names of the weights that every layer has, (models, layers, rows, columns)."""


@dataclass(frozen=True)
class TransformerConfig(ModelConfig):
    """What a decoder is made of.

    Args:
        encoding: name of an encoding, or a class with at least one of the three hooks.
        encoding_options: options for the encoding's `__init__`.
        vocabulary: number of tokens, at least 2.
        d_model: width of the residual stream, a multiple of `n_heads`; the MLP is 4 times wider.
        n_layers: number of blocks.
        n_heads: number of heads in a block, each of width `d_model / n_heads`.
        max_length: number of positions offered to encodings that need a table.
        std: standard deviation of every initial weight; of those that write to the residual
            stream it is divided by the root of their number, twice `n_layers`.

    Raises:
        ValueError: an unknown encoding, a size that is too small, or heads that do not divide
            the width.

    Source: the initialization of Radford et al. (2019).
    """

    encoding: str | type = "rotary"
    encoding_options: dict[str, object] = field(default_factory=dict)
    vocabulary: int = 16
    d_model: int = 64
    n_layers: int = 2
    n_heads: int = 4
    max_length: int = 1024
    std: float = 0.02

    def __post_init__(self) -> None:
        self.check_sizes(vocabulary=2, d_model=1, n_layers=1, n_heads=1, max_length=1)
        if not self.std > 0:
            raise ValueError(f"std={self.std} is not allowed: it must be above 0")
        if self.d_model % self.n_heads:
            raise ValueError(
                f"n_heads={self.n_heads} do not divide d_model={self.d_model}: "
                "d_model must be a multiple of n_heads"
            )

    @property
    def d_head(self) -> int:
        """Width of a head's queries, keys and values."""
        return self.d_model // self.n_heads

    def draw(self, generator: torch.Generator) -> dict[str, Tensor]:
        """Draw the initial weights of one model."""
        d, wide, layers = self.d_model, 4 * self.d_model, self.n_layers
        shapes = {
            "token": (self.vocabulary, d),
            **dict.fromkeys(("query", "key", "value", "output"), (layers, d, d)),
            "expand": (layers, d, wide),
            "contract": (layers, wide, d),
            "readout": (d, self.vocabulary),
        }
        weights = {k: self.std * torch.randn(s, generator=generator) for k, s in shapes.items()}
        for name in ("output", "contract"):  # both write to the residual stream
            weights[name] /= (2 * layers) ** 0.5
        return weights


@dataclass(frozen=True)
class Trace:
    """What every layer and head of a stack computes on the way to its answers.

    Args:
        answers: logits of the answer at every position.
        logits: scaled attention logits of each layer, keys after the query included.
        attention: attention weights of each layer; 0 on keys after the query.
        inputs: what the heads of each layer read, the normalized residual stream.
    """

    answers: Float[Tensor, "models batch length vocabulary"]
    logits: Float[Tensor, "models layers batch heads query key"]
    attention: Float[Tensor, "models layers batch heads query key"]
    inputs: Float[Tensor, "models layers batch length d_model"]


class TransformerStack(ModelStack):
    r"""Decoders, stacked: every position answers, and sees itself and the positions before it.

    With $x^0_i = e_{t_i} + p_i$, each layer computes
    $y = x + \sum_h A_h(\mathrm{LN}(x))\, W_o^h$ and $x' = y + W_2\, \mathrm{GELU}(W_1\,
    \mathrm{LN}(y))$; the answer's logits are $\mathrm{LN}(x) W$ after the last one. LN subtracts
    the mean and divides by the standard deviation; its usual gain is left out, since the matrix
    that follows absorbs it. There are no offsets (biases) beside the encoding's.

    An encoding's `embed` acts once, on the input; its other hooks act in every layer and head.
    One set of the encoding's parameters serves all layers.

    Source: Vaswani et al. (2017), pre-norm as in Radford et al. (2019).
    """

    config: TransformerConfig

    def forward(
        self,
        tokens: Integer[Tensor, "models batch length"],
        positions: Int[Tensor, " length"] | None = None,
        *,
        starts: Integer[Tensor, "models batch"] | None = None,
        keep: Float[Tensor, "models layers heads"] | None = None,
    ) -> Float[Tensor, "models batch length vocabulary"]:
        """Return the answer's logits at every position.

        Args:
            tokens: sequences in reading order.
            positions: positions of the tokens, `0 .. length - 1` by default.
            starts: first position of each sequence, instead of `positions`; for encodings that
                define the hook `embed` and no other.
            keep: factors of the heads' outputs; 0 cuts a head out.

        Raises:
            ValueError: `starts` for an encoding with another hook than `embed`.
        """

        def attend(
            _: Tensor, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None
        ) -> Tensor:
            flat = [x.flatten(0, 1) for x in (query, key, value)]
            if bias is None:
                return scaled_dot_product_attention(*flat, is_causal=True).view_as(value)
            future = _future(query.shape[-2])
            mask = bias.masked_fill(future, -torch.inf).expand(*query.shape[:3], -1, -1)
            mask = mask.flatten(0, 1).to(query.dtype)
            return scaled_dot_product_attention(*flat, mask).view_as(value)

        return self._run(tokens, positions, starts, keep, attend)

    def trace(
        self,
        tokens: Integer[Tensor, "models batch length"],
        positions: Int[Tensor, " length"] | None = None,
    ) -> Trace:
        """Return what every layer and head computes, by plain attention: the readable reference.

        Args:
            tokens: as in `forward`.
            positions: as in `forward`.
        """
        logits, attention, inputs = [], [], []

        def attend(
            x: Tensor, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None
        ) -> Tensor:
            logit = query @ key.transpose(-1, -2) / self.config.d_head**0.5
            if bias is not None:
                logit = logit + bias
            weight = logit.masked_fill(_future(query.shape[-2]), -torch.inf).softmax(-1)
            logits.append(logit.to(self.dtype))
            attention.append(weight.to(self.dtype))
            inputs.append(x)
            return weight @ value

        answers = self._run(tokens, positions, None, None, attend)
        return Trace(answers, *(torch.stack(x, dim=1) for x in (logits, attention, inputs)))

    def _run(
        self,
        tokens: Tensor,
        positions: Tensor | None,
        starts: Tensor | None,
        keep: Tensor | None,
        attend: Callable[..., Tensor],
    ) -> Tensor:
        if positions is None:
            positions = torch.arange(tokens.shape[-1])
        bias = self.call_hook("bias", None, positions, positions)
        if bias is not None:  # (models, 1, heads, query, key)
            bias = bias.to(self.dtype)
            bias = bias[:, None] if bias.dim() == 4 else bias[:, None, None]
        x = self._embed(tokens, positions, starts)
        layers = zip(*(self.parameters[name].unbind(1) for name in LAYER_WEIGHTS), strict=True)
        for layer, (query, key, value, output, expand, contract) in enumerate(layers):
            h = _norm(x)
            q, k, v = (self._split(_apply(h, weight)) for weight in (query, key, value))
            q, k = self.transform("query", q, positions), self.transform("key", k, positions)
            wide = torch.promote_types(q.dtype, k.dtype)  # a hook may ask for more precision
            mixed = attend(h, q.to(wide), k.to(wide), v.to(wide), bias).to(self.dtype)
            if keep is not None:
                mixed = mixed * keep[:, layer, None, :, None, None]
            x = x + _apply(mixed.transpose(2, 3).flatten(3), output)
            x = x + _apply(gelu(_apply(_norm(x), expand)), contract)
        return _apply(_norm(x), self.parameters["readout"])

    def _embed(self, tokens: Tensor, positions: Tensor, starts: Tensor | None) -> Tensor:
        """Return token embeddings plus position vectors, (models, batch, length, d_model)."""
        model = torch.arange(self.n_models)[:, None, None]
        x = self.parameters["token"][model, tokens.long()]
        if starts is None:
            vectors = self.call_hook("embed", None, positions)
            return x if vectors is None else x + vectors[:, None].to(self.dtype)
        self.check_starts()
        place = starts[..., None] + torch.arange(tokens.shape[-1])
        vectors = self.call_hook("embed", None, torch.arange(int(place.max()) + 1))
        return x + vectors.to(self.dtype).expand(self.n_models, -1, -1)[model, place]

    def _split(self, x: Tensor) -> Tensor:
        """Give every head its channels: (models, batch, heads, length, d_head)."""
        return x.unflatten(-1, (self.config.n_heads, -1)).transpose(2, 3)


def _apply(x: Tensor, weight: Tensor) -> Tensor:
    """Multiply by each model's own matrix: (models, batch, length, rows) to (..., columns)."""
    return (x.flatten(1, 2) @ weight).unflatten(1, x.shape[1:3])


def _norm(x: Tensor) -> Tensor:
    return layer_norm(x, x.shape[-1:])


def _future(length: int) -> Tensor:
    """Return which keys come after the query, (query, key)."""
    return torch.ones(length, length, dtype=torch.bool).triu(1)
