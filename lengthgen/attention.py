"""The single softmax head, many models at once.

`HeadStack` holds the parameters of `n_models` heads on a leading axis. `HeadStack.forward` is the
plain attention head, written to be read. `HeadStack.tables` is the same head as the lookup tables
of `lengthgen.lookup`, which training and evaluation use. Tests hold the two equal.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int, Integer
from torch import Tensor

from lengthgen.lookup import Tables
from lengthgen.stack import ModelConfig, ModelStack

__all__ = ["HeadConfig", "HeadStack"]


@dataclass(frozen=True)
class HeadConfig(ModelConfig):
    r"""What a head is made of.

    Args:
        encoding: name of an encoding, or a class with at least one of the three hooks.
        encoding_options: options for the encoding's `__init__`.
        vocabulary: number of tokens, at least 2.
        d_model: width of token embeddings.
        d_head: width of queries, keys and values.
        max_length: number of positions offered to encodings that need a table.
        log_length: a length $n \ge 2$ at which nothing changes; logits of a query at position
            $i$ are multiplied by $\log(i + 1) / \log n$, so that attention does not thin out as
            sequences grow (Su 2021; Chiang and Cholak 2022). `None`: no such temperature.

    Raises:
        ValueError: an unknown encoding or a size that is too small.
    """

    encoding: str | type = "rotary"
    encoding_options: dict[str, object] = field(default_factory=dict)
    vocabulary: int = 16
    d_model: int = 32
    d_head: int = 32
    max_length: int = 1024
    log_length: int | None = None

    def __post_init__(self) -> None:
        self.check_sizes(vocabulary=2, d_model=1, d_head=1, max_length=1)
        if self.log_length is not None and self.log_length < 2:
            raise ValueError(f"log_length={self.log_length} is not allowed: it must be at least 2")

    def draw(self, generator: torch.Generator) -> dict[str, Tensor]:
        r"""Draw the initial weights of one model: all $N(0, 1/d)$, $d$ the width they act on."""
        d_model, d_head = self.d_model, self.d_head
        shapes = {
            "token": (self.vocabulary, d_model),
            "query": (d_model, d_head),
            "key": (d_model, d_head),
            "value": (d_model, d_head),
            "output": (d_head, self.vocabulary),
        }
        widths = {name: shape[0] for name, shape in shapes.items()} | {"token": d_model}
        return {
            name: torch.randn(shape, generator=generator) / widths[name] ** 0.5
            for name, shape in shapes.items()
        }


class HeadStack(ModelStack):
    r"""Single-head attention models, stacked: queries at the last position, softmax, readout.

    With $x_j = e_{t_j} + p_j$ the answer's logits are $\sum_j \alpha_j x_j W_v W_o$, where
    $\alpha = \mathrm{softmax}_j(\langle x_i W_q, x_j W_k\rangle / \sqrt{d})$ and $p$, the inner
    product or both depend on position through the encoding's hooks.

    Args:
        config: what every model of the stack is made of.
        parameters: tensors with a leading axis of `n_models`, `token`, `query`, `key`, `value`,
            `output`, and `encoding.NAME` for the encoding's own.
        encodings: one instance per model (the first alone where its values are in `parameters`).
    """

    config: HeadConfig

    # -- the readable reference ---------------------------------------------------------------

    def forward(
        self,
        tokens: Integer[Tensor, "models batch length"],
        positions: Int[Tensor, " length"] | None = None,
    ) -> tuple[Float[Tensor, "models batch vocabulary"], Float[Tensor, "models batch length"]]:
        """Return the answer's logits and the attention weights, by plain attention.

        Args:
            tokens: sequences in reading order; the query is the last token.
            positions: positions of the tokens, `0 .. length - 1` by default.
        """
        if positions is None:
            positions = torch.arange(tokens.shape[-1])
        model = torch.arange(self.n_models)[:, None, None]
        x = self.parameters["token"][model, tokens.long()]  # (models, batch, length, d_model)
        position_vectors = self.hook("embed", positions)
        if position_vectors is not None:
            x = x + position_vectors[:, None]
        query, key, value = (
            torch.einsum("mbld,mde->mble", x, self.parameters[name])
            for name in ("query", "key", "value")
        )
        query = self.transform("query", query[:, :, -1:], positions[-1:])
        key = self.transform("key", key, positions)
        logits = torch.einsum("mbqe,mbke->mbqk", query, key).to(self.dtype)
        logits = logits / self.config.d_head**0.5
        bias = self.hook("bias", positions[-1:], positions)
        if bias is not None:
            logits = logits + bias[:, None]
        if self.config.log_length is not None:
            logits = logits * self._temperature(positions[-1:])
        attention = logits.softmax(-1)  # (models, batch, 1, length)
        output = torch.einsum("mbqk,mbke,mev->mbv", attention, value, self.parameters["output"])
        return output, attention[:, :, 0]

    # -- the same head as lookup tables -------------------------------------------------------

    def tables(
        self, query_positions: Int[Tensor, " queries"], key_positions: Int[Tensor, " positions"]
    ) -> Tables:
        """Return the stack as lookup tables.

        Args:
            query_positions: the query position of each model, or one for all.
            key_positions: the key positions.

        Raises:
            ValueError: neither one query position nor one per model.
        """
        if len(query_positions) not in (1, self.n_models):
            raise ValueError(
                f"{len(query_positions)} query positions for {self.n_models} models: give one "
                "for all or one for each"
            )
        rows = self.rows(self.hook("embed", key_positions))
        query = self._queries(query_positions) * self.scale(query_positions)
        key = torch.bmm(rows, self.parameters["key"])
        if "transform_key" in self.hooks:
            key = self.key_of_every_pair(key, len(key_positions))
            key = self.transform("key", key, key_positions)
        bias = self.scaled_bias(query_positions, key_positions)
        weights = torch.bmm(self.parameters["value"], self.parameters["output"])
        return self.as_tables(query, key, bias, torch.bmm(rows, weights), len(key_positions))

    def as_tables(
        self,
        query: Float[Tensor, "models token d_head"],
        key: Tensor,
        bias: Float[Tensor, "models positions"] | None,
        readout: Float[Tensor, "models rows vocabulary"],
        n_positions: int,
    ) -> Tables:
        """Put the parts of a stack together as lookup tables.

        Args:
            query: scaled queries.
            key: of every token at every position, (models, token, position, d_head), or, where
                nothing turns them, of every row.
            bias: what each key position adds to the logits.
            readout: contribution of every row to the answer's logits.
            n_positions: number of key positions.
        """
        key = key.to(query.dtype)  # which may be wider
        if key.dim() == 4:
            logit = torch.bmm(key.flatten(1, 2), query.mT).unflatten(1, key.shape[1:3])
        else:  # the logit is a sum of a token's and a position's part
            logit = self.token_plus_position(torch.bmm(key, query.mT), dim=1)
        logit = logit.to(self.dtype)  # (models, key token, key position, query token)
        if bias is not None:
            logit = logit + bias[:, None, :, None]
        logit = logit.expand(-1, -1, n_positions, -1)
        vocabulary = self.config.vocabulary
        by_position = readout[:, vocabulary:] if readout.shape[1] > vocabulary else None
        return Tables(logit.permute(0, 3, 1, 2), readout[:, :vocabulary], by_position)

    def key_of_every_pair(self, key: Tensor, n_positions: int) -> Tensor:
        """Return the keys of every token at every position, from those of every row."""
        return self.token_plus_position(key, dim=1).expand(-1, -1, n_positions, -1)

    def _queries(self, positions: Tensor) -> Tensor:
        """Return the query of every token at each model's position, (models, token, d_head)."""
        vectors = self._by_query("embed", positions)
        rows = self.rows(None if vectors is None else vectors[:, None])
        query = self.token_plus_position(rows @ self.parameters["query"], dim=1)[:, :, 0]
        return self.transform_queries(query, positions)

    def transform_queries(self, query: Tensor, positions: Tensor) -> Tensor:
        """Apply `transform_query` to queries at each model's position, (models, token, d_head)."""
        if "transform_query" not in self.hooks:
            return query
        if self._shared:  # the model axis takes the place of the length: a position for each
            by_length = query.transpose(0, 1)
            positions = positions.expand(self.n_models)
            return self.transform("query", by_length, positions).transpose(0, 1)
        distinct, index = positions.unique(return_inverse=True)
        query = query[:, :, None].expand(-1, -1, len(distinct), -1)
        query = self.transform("query", query, distinct)
        return query[torch.arange(self.n_models), :, index.expand(self.n_models)]

    def scale(self, query_positions: Tensor) -> Tensor | float:
        r"""Return the factor of inner products at query positions, $1/\sqrt{d}$ by default."""
        root = self.config.d_head**0.5
        if self.config.log_length is None:
            return 1 / root
        return self._temperature(query_positions)[:, None, None] / root

    def scaled_bias(self, query_positions: Tensor, key_positions: Tensor) -> Tensor | None:
        """Return what a `bias` adds to the logits of each model's query, (models, keys)."""
        bias = self._by_query("bias", query_positions, key_positions)
        if bias is None or self.config.log_length is None:
            return bias
        return bias * self._temperature(query_positions)[:, None]

    def _by_query(self, hook: str, query_positions: Tensor, *others: Tensor) -> Tensor | None:
        """Call `embed` or `bias` at each model's query position, (models, ...)."""
        if hook not in self.hooks:
            return None
        if self._shared:
            return self.hook(hook, query_positions, *others)[0].expand(self.n_models, -1)
        distinct, index = query_positions.unique(return_inverse=True)
        value = self.hook(hook, distinct, *others)
        return value[torch.arange(self.n_models), index.expand(self.n_models)]

    def _temperature(self, query_positions: Tensor) -> Tensor:
        """Return the factor of the logits at a query position; see `HeadConfig.log_length`."""
        return (query_positions + 1).to(self.dtype).log() / math.log(self.config.log_length)

    def rows(self, vectors: Tensor | None) -> Tensor:
        """Return token embeddings and position vectors below each other: one product for both."""
        token = self.parameters["token"]
        if vectors is None:
            return token
        return torch.cat([token, vectors.expand(self.n_models, -1, -1)], dim=1)

    def token_plus_position(self, rows: Tensor, dim: int) -> Tensor:
        """Split an axis into tokens and positions and add every pair: (.., token, position, ..)."""
        vocabulary = self.config.vocabulary
        tokens = rows.narrow(dim, 0, vocabulary).unsqueeze(dim + 1)
        if rows.shape[dim] == vocabulary:
            return tokens
        return tokens + rows.narrow(dim, vocabulary, rows.shape[dim] - vocabulary).unsqueeze(dim)

    # -- the encoding's hooks -----------------------------------------------------------------

    def hook(self, name: str, *arguments: Tensor) -> Tensor | None:
        """Call `embed` or `bias`; return the value with a model axis, or `None` if undefined.

        The axis has size 1 where one value serves every model. A bias per head is that of the
        first head: this is a single-head model.
        """
        value = self.call_hook(name, None, *arguments)
        if value is None:
            return None
        value = value.to(self.dtype)
        return value[:, 0] if name == "bias" and value.dim() == 4 else value
