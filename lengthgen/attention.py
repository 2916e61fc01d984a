"""The single softmax head, many models at once; every head is two lookup tables.

`HeadStack` holds the parameters of `n_models` heads on a leading axis. `HeadStack.forward` is the
plain attention head, written to be read. `HeadStack.tables` is the same head as a table of logits
over (query token, key token, key position) and a readout per key: with a small vocabulary it is
built once and every sequence is then a lookup. Tests hold the two equal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int, Integer
from torch import Tensor, nn

from lengthgen.encodings import HOOKS, construct, encoding_class, has_hook, takes_generator
from lengthgen.task import Stream, generator_for

__all__ = ["AdditiveTables", "HeadConfig", "HeadStack", "Tables"]

WEIGHTS = ("token", "query", "key", "value", "output")
"""Names of the parameters that every head has; the encoding's own follow as `encoding.NAME`."""

ENCODING = "encoding."


@dataclass(frozen=True)
class HeadConfig:
    """What a head is made of.

    Args:
        encoding: name of an encoding, or a class with at least one of the three hooks.
        encoding_options: options for the encoding's `__init__`.
        vocabulary: number of tokens, at least 2.
        d_model: width of token embeddings.
        d_head: width of queries, keys and values.
        max_length: number of positions offered to encodings that need a table.

    Raises:
        ValueError: an unknown encoding or a size that is too small.
    """

    encoding: str | type = "rotary"
    encoding_options: dict[str, object] = field(default_factory=dict)
    vocabulary: int = 16
    d_model: int = 32
    d_head: int = 32
    max_length: int = 1024

    def __post_init__(self) -> None:
        encoding_class(self.encoding)
        for name, least in (("vocabulary", 2), ("d_model", 1), ("d_head", 1), ("max_length", 1)):
            if (value := getattr(self, name)) < least:
                raise ValueError(f"{name}={value} is not allowed: it must be at least {least}")

    @property
    def reach(self) -> int | None:
        """The longest sequence that the encoding accepts, or `None` for any."""
        return getattr(self.new_encoding(0), "max_length", None)

    def new_encoding(self, seed: int) -> object:
        """Construct the encoding of one model; its initial values depend on `seed` alone."""
        return construct(
            encoding_class(self.encoding),
            d_model=self.d_model,
            d_head=self.d_head,
            n_heads=1,
            max_length=self.max_length,
            generator=generator_for(Stream.ENCODING, seed),
            options=self.encoding_options,
        )


@dataclass(frozen=True)
class Tables:
    r"""A stack of heads at one query position, as lookup tables.

    Args:
        logit: $\ell[a, b, j]$, scaled logit of query token a and key token b at key position j.
        token_readout: contribution of key token b to the answer's logits.
        position_readout: contribution of key position j, or `None` if values carry no position.
    """

    logit: Float[Tensor, "models query_token key_token keys"]
    token_readout: Float[Tensor, "models key_token vocabulary"]
    position_readout: Float[Tensor, "models keys vocabulary"] | None

    def attention(
        self,
        tokens: Integer[Tensor, "models batch keys"],
        query_tokens: Integer[Tensor, "models batch"],
        mask: Tensor | None = None,
    ) -> Float[Tensor, "models batch keys"]:
        """Return attention weights: look up the logits, hide masked keys, normalize."""
        vocabulary, n_keys = self.logit.shape[2:]
        pair = query_tokens[..., None].long() * vocabulary + tokens.long()
        index = pair * n_keys + torch.arange(n_keys, device=tokens.device)
        logits = self.logit.flatten(1).gather(1, index.flatten(1)).view(index.shape)
        if mask is not None:
            logits = logits.masked_fill(~mask, -torch.inf)
        return logits.softmax(-1)

    def answer(
        self,
        tokens: Integer[Tensor, "models batch keys"],
        attention: Float[Tensor, "models batch keys"],
    ) -> Float[Tensor, "models batch vocabulary"]:
        """Return the answer's logits: attention mass per token times readout."""
        mass = attention.new_zeros(*attention.shape[:2], self.token_readout.shape[1])
        answer = mass.scatter_add(2, tokens.long(), attention) @ self.token_readout
        if self.position_readout is not None:
            answer = answer + attention @ self.position_readout
        return answer


@dataclass(frozen=True)
class AdditiveTables:
    """A stack of heads whose encoding only adds position vectors, as scores between rows.

    Rows are the vocabulary's embeddings followed by the position vectors. A logit is a sum of
    four scores, so one table serves every query position, and each sequence may start elsewhere.

    Args:
        score: scaled score of each query row with each key row.
        readout: contribution of each row to the answer's logits.
        vocabulary: number of rows that are tokens.
    """

    score: Float[Tensor, "models rows rows"]
    readout: Float[Tensor, "models rows vocabulary"]
    vocabulary: int

    def attention(
        self,
        tokens: Integer[Tensor, "models batch keys"],
        query_tokens: Integer[Tensor, "models batch"],
        query_positions: Integer[Tensor, "models batch"],
        key_positions: Integer[Tensor, "models batch keys"],
        mask: Tensor,
    ) -> Float[Tensor, "models batch keys"]:
        """Return attention weights of sequences whose tokens stand at `key_positions`."""
        queries = torch.cat([query_tokens, self.vocabulary + query_positions], dim=1)
        rows = queries[..., None].expand(-1, -1, self.score.shape[2])
        of_token, of_position = self.score.gather(1, rows).chunk(2, dim=1)
        by_row = of_token + of_position  # (models, batch, rows)
        logits = by_row.gather(2, tokens) + by_row.gather(2, self.vocabulary + key_positions)
        return logits.masked_fill(~mask, -torch.inf).softmax(-1)

    def answer(
        self,
        tokens: Integer[Tensor, "models batch keys"],
        key_positions: Integer[Tensor, "models batch keys"],
        attention: Float[Tensor, "models batch keys"],
    ) -> Float[Tensor, "models batch vocabulary"]:
        """Return the answer's logits: attention mass per row times readout."""
        mass = attention.new_zeros(*attention.shape[:2], self.readout.shape[1])
        mass = mass.scatter_add(2, tokens, attention)
        return mass.scatter_add(2, self.vocabulary + key_positions, attention) @ self.readout


class HeadStack:
    r"""Single-head attention models, stacked: queries at the last position, softmax, readout.

    With $x_j = e_{t_j} + p_j$ the answer's logits are $\sum_j \alpha_j x_j W_v W_o$, where
    $\alpha = \mathrm{softmax}_j(\langle x_i W_q, x_j W_k\rangle / \sqrt{d})$ and $p$, the inner
    product or both depend on position through the encoding's hooks.

    Args:
        config: what every model of the stack is made of.
        parameters: tensors with a leading axis of `n_models`, named as in `WEIGHTS` plus
            `encoding.NAME` for the encoding's own.
        encodings: one instance per model (the first alone where its values are in `parameters`).
    """

    def __init__(
        self, config: HeadConfig, parameters: dict[str, Tensor], encodings: Sequence[object]
    ) -> None:
        self.config, self.parameters, self.encodings = config, parameters, list(encodings)

    @classmethod
    def initialize(cls, config: HeadConfig, seeds: Sequence[int]) -> HeadStack:
        r"""Draw the initial models: weights and token embeddings $N(0, 1/d)$.

        A model's values depend on its seed alone, bitwise, never on the stack it is in.
        """
        return cls.from_state(config, _initial_parameters(config, seeds), seeds)

    @classmethod
    def from_state(
        cls, config: HeadConfig, parameters: dict[str, Tensor], seeds: Sequence[int]
    ) -> HeadStack:
        """Put stored parameters back into a stack."""
        return cls(config, dict(parameters), [config.new_encoding(seed) for seed in seeds])

    @property
    def n_models(self) -> int:
        """Number of models in the stack."""
        return len(self.parameters["token"])

    @property
    def dtype(self) -> torch.dtype:
        """Floating-point type of the weights."""
        return self.parameters["token"].dtype

    @property
    def trainable(self) -> dict[str, Tensor]:
        """The parameters that training changes: all but the encoding's buffers."""
        first = self.encodings[0]
        buffers = dict(first.named_buffers()) if isinstance(first, nn.Module) else {}
        fixed = {f"{ENCODING}{name}" for name in buffers}
        return {name: value for name, value in self.parameters.items() if name not in fixed}

    def map(self, change: Callable[[Tensor], Tensor]) -> HeadStack:
        """Return a stack with every parameter tensor changed, e.g. `lambda p: p.double()`."""
        parameters = {name: change(value) for name, value in self.parameters.items()}
        return HeadStack(self.config, parameters, self.encodings)

    def select(self, models: Sequence[int]) -> HeadStack:
        """Return the stack of the models with these indices."""
        index = torch.as_tensor(list(models), dtype=torch.long)
        parameters = {name: value[index] for name, value in self.parameters.items()}
        return HeadStack(self.config, parameters, [self.encodings[i] for i in index.tolist()])

    def with_parameters(self, **parameters: Tensor) -> HeadStack:
        """Return a stack with some parameters replaced (dots in names written as `__`)."""
        named = {name.replace("__", "."): value for name, value in parameters.items()}
        return HeadStack(self.config, {**self.parameters, **named}, self.encodings)

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
        query = self._transform("query", query[:, :, -1:], positions[-1:])
        key = self._transform("key", key, positions)
        logits = torch.einsum("mbqe,mbke->mbqk", query, key) / self.config.d_head**0.5
        bias = self.hook("bias", positions[-1:], positions)
        if bias is not None:
            logits = logits + bias[:, None]
        attention = logits.softmax(-1)  # (models, batch, 1, length)
        output = torch.einsum("mbqk,mbke,mev->mbv", attention, value, self.parameters["output"])
        return output, attention[:, :, 0]

    # -- the same head as lookup tables -------------------------------------------------------

    def tables(
        self,
        query_positions: Int[Tensor, " queries"],
        key_positions: Int[Tensor, " positions"],
        query_index: Int[Tensor, " models"] | None = None,
    ) -> Tables:
        """Return the stack as lookup tables for one query position per model.

        Args:
            query_positions: the one query position, or several, of which `query_index` chooses.
            key_positions: the key positions.
            query_index: which query position each model uses; the first by default.
        """
        if query_index is None:
            query_index = torch.zeros(self.n_models, dtype=torch.long)
        vectors = query_vectors = self.hook("embed", key_positions)
        if query_positions is not key_positions:
            query_vectors = self.hook("embed", query_positions)
        query = self._placed("query", query_vectors, query_positions, query_index)
        query = query[:, :, 0] / self.config.d_head**0.5
        if has_hook(self.encodings[0], "transform_key"):
            key = self._placed("key", vectors, key_positions)
            logit = (query @ key.flatten(1, 2).transpose(1, 2)).unflatten(-1, key.shape[1:3])
        else:  # the logit is a sum of a token's and a position's part
            key = self._rows(vectors) @ self.parameters["key"]
            logit = self._token_plus_position(query @ key.transpose(1, 2), dim=2)
        bias = self.hook("bias", query_positions, key_positions)
        if bias is not None:
            bias = bias.expand(self.n_models, -1, -1)[torch.arange(self.n_models), query_index]
            logit = logit + bias[:, None, None]
        readout = self._rows(vectors) @ (self.parameters["value"] @ self.parameters["output"])
        vocabulary = self.config.vocabulary
        return Tables(
            logit.expand(-1, -1, -1, len(key_positions)),
            readout[:, :vocabulary],
            None if vectors is None else readout[:, vocabulary:],
        )

    @property
    def additive(self) -> bool:
        """Whether position enters through added vectors alone."""
        hooks = [hook for hook in HOOKS if has_hook(self.encodings[0], hook)]
        return hooks == ["embed"]

    def additive_tables(self, positions: Int[Tensor, " positions"]) -> AdditiveTables:
        """Return the stack as scores between rows; positions are rows in the order given.

        Raises:
            ValueError: position enters through another hook than `embed`.
        """
        if not self.additive:
            raise ValueError(f"encoding {self.config.encoding!r} is more than added vectors")
        rows = self._rows(self.hook("embed", positions))
        query = rows @ self.parameters["query"] / self.config.d_head**0.5
        score = query @ (rows @ self.parameters["key"]).transpose(1, 2)
        readout = rows @ (self.parameters["value"] @ self.parameters["output"])
        return AdditiveTables(score, readout, self.config.vocabulary)

    def _placed(
        self, side: str, vectors: Tensor | None, positions: Tensor, index: Tensor | None = None
    ) -> Tensor:
        """Return queries or keys of every token at every position, (models, token, keys, d).

        With an index (models,), only at one position per model. The last axes are (token, 1, d)
        where nothing depends on position.
        """
        moves = has_hook(self.encodings[0], f"transform_{side}")
        rows = self._rows(vectors if moves else _take(vectors, index)) @ self.parameters[side]
        placed = self._token_plus_position(rows, dim=1)
        if not moves:
            return placed
        placed = placed.expand(-1, -1, len(positions), -1)
        return _take(self._transform(side, placed, positions), index)

    def _rows(self, vectors: Tensor | None) -> Tensor:
        """Return token embeddings and position vectors below each other: one product for both."""
        token = self.parameters["token"]
        if vectors is None:
            return token
        return torch.cat([token, vectors.expand(self.n_models, -1, -1)], dim=1)

    def _token_plus_position(self, rows: Tensor, dim: int) -> Tensor:
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
        value = self._call(name, None, arguments)
        if value is None:
            return None
        value = value.to(self.dtype)
        return value[:, 0] if name == "bias" and value.dim() == 4 else value

    def _transform(self, side: str, x: Tensor, positions: Tensor) -> Tensor:
        turned = self._call(f"transform_{side}", x, (positions,))
        return x if turned is None else turned

    def _call(self, name: str, x: Tensor | None, arguments: tuple[Tensor, ...]) -> Tensor | None:
        """Call a hook, which never sees the model axis, for all models.

        An encoding with parameters is called through `vmap`; one without, whose `__init__` names
        no `generator`, once for all models; else model by model.
        """
        first = self.encodings[0]
        if not has_hook(first, name):
            return None
        state = {k: v for k, v in self.parameters.items() if k.startswith(ENCODING)}
        if not state and not takes_generator(type(first)):
            hook = getattr(first, name)
            return hook(*arguments)[None] if x is None else hook(x, *arguments)
        if not state:
            inputs = [arguments if x is None else (x[m], *arguments) for m in range(self.n_models)]
            calls = zip(self.encodings, inputs, strict=True)
            return torch.stack([getattr(encoding, name)(*args) for encoding, args in calls])
        caller = _HookCaller(first)

        def one_model(state: dict[str, Tensor], x: Tensor | None) -> Tensor:
            inputs = arguments if x is None else (x, *arguments)
            return torch.func.functional_call(caller, state, (name, *inputs))

        return torch.vmap(one_model, in_dims=(0, None if x is None else 0))(state, x)


class _HookCaller(nn.Module):
    """Gives `functional_call`, which knows only `forward`, a way to an encoding's hooks."""

    def __init__(self, encoding: nn.Module) -> None:
        super().__init__()
        self.encoding = encoding

    def forward(self, name: str, *arguments: Tensor) -> Tensor:
        return getattr(self.encoding, name)(*arguments)


def _initial_parameters(config: HeadConfig, seeds: Sequence[int]) -> dict[str, Tensor]:
    vocabulary, d_model, d_head = config.vocabulary, config.d_model, config.d_head
    shapes = {
        "token": (vocabulary, d_model),
        "query": (d_model, d_head),
        "key": (d_model, d_head),
        "value": (d_model, d_head),
        "output": (d_head, vocabulary),
    }
    models = []
    for seed in seeds:
        generator = generator_for(Stream.WEIGHTS, seed)
        model = {}
        for name, shape in shapes.items():
            width = d_model if name == "token" else shape[0]
            model[name] = torch.randn(shape, generator=generator) / width**0.5
        encoding = config.new_encoding(seed)
        if isinstance(encoding, nn.Module):
            state = dict(encoding.named_parameters())
            if takes_generator(type(encoding)):  # else buffers are the same in every model
                state |= dict(encoding.named_buffers())
            model |= {f"{ENCODING}{name}": value.detach().clone() for name, value in state.items()}
        models.append(model)
    return {name: torch.stack([model[name] for model in models]) for name in models[0]}


def _take(x: Tensor | None, index: Tensor | None) -> Tensor | None:
    """Choose one position (second to last axis) per model by an index (models,)."""
    if x is None or index is None:
        return x
    x = x.expand(len(index), *x.shape[1:])
    index = index.view(-1, *[1] * (x.dim() - 1))
    return x.gather(-2, index.expand(*x.shape[:-2], 1, x.shape[-1]))
