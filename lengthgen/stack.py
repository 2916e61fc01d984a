"""What a stack of models is, whatever the model: parameters on a leading axis, and its hooks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from lengthgen.encodings import (
    HOOKS,
    construct,
    encoding_class,
    has_hook,
    is_isometric,
    takes_generator,
)
from lengthgen.task import Stream, generator_for

__all__ = ["ENCODING", "ModelConfig", "ModelStack"]

ENCODING = "encoding."
"""Prefix of the encoding's own parameters among those of a model."""


class ModelConfig:
    """What every model's configuration can do, whatever the model.

    A subclass is a frozen dataclass with the fields `encoding`, `encoding_options`, `d_model`
    and `max_length`, and has `d_head` and `draw(generator)`, which returns the initial weights of
    one model.
    """

    n_heads = 1  # not a field, unless a subclass makes it one

    def check_sizes(self, **least: int) -> None:
        """Refuse an unknown encoding and sizes that are too small.

        Raises:
            ValueError: names the value and the least that is allowed.
        """
        encoding_class(self.encoding)
        for name, smallest in least.items():
            if (value := getattr(self, name)) < smallest:
                raise ValueError(f"{name}={value} is not allowed: it must be at least {smallest}")

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
            n_heads=self.n_heads,
            max_length=self.max_length,
            generator=generator_for(Stream.ENCODING, seed),
            options=self.encoding_options,
        )


class ModelStack:
    """Models of one configuration, stacked; a subclass says what a model computes.

    Args:
        config: what every model of the stack is made of.
        parameters: tensors with a leading axis of `n_models`: the weights, and `encoding.NAME`
            for the encoding's own.
        encodings: one instance per model (the first alone where its values are in `parameters`).
    """

    def __init__(
        self, config: ModelConfig, parameters: dict[str, Tensor], encodings: Sequence[object]
    ) -> None:
        self.config, self.parameters, self.encodings = config, parameters, list(encodings)
        first = self.encodings[0]
        self.hooks = {name for name in HOOKS if has_hook(first, name)}
        own = any(name.startswith(ENCODING) for name in parameters)
        # One encoding serves all models if it has no parameters and draws nothing of its own.
        self._shared = not own and not takes_generator(type(first))

    @classmethod
    def initialize(cls, config: ModelConfig, seeds: Sequence[int]) -> ModelStack:
        """Draw the initial models.

        A model's values depend on its seed alone, bitwise, never on the stack it is in.
        """
        models = [_initial_parameters(config, seed) for seed in seeds]
        stacked = {name: torch.stack([model[name] for model in models]) for name in models[0]}
        return cls.from_state(config, stacked, seeds)

    @classmethod
    def from_state(
        cls, config: ModelConfig, parameters: dict[str, Tensor], seeds: Sequence[int]
    ) -> ModelStack:
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

    @property
    def additive(self) -> bool:
        """Whether position enters through added vectors alone."""
        return self.hooks == {"embed"} and getattr(self.config, "log_length", None) is None

    def check_starts(self) -> None:
        """Refuse first positions other than 0 for encodings that cannot have them.

        Raises:
            ValueError: position enters through another hook than `embed`.
        """
        if not self.additive:
            raise ValueError(
                f"encoding {self.config.encoding!r} draws first positions, which needs an "
                "encoding that defines the hook embed and no other"
            )

    def map(self, change: Callable[[Tensor], Tensor]) -> ModelStack:
        """Return a stack with every parameter tensor changed, e.g. `lambda p: p.double()`."""
        parameters = {name: change(value) for name, value in self.parameters.items()}
        return type(self)(self.config, parameters, self.encodings)

    def select(self, models: Sequence[int]) -> ModelStack:
        """Return the stack of the models with these indices, which may repeat."""
        index = torch.as_tensor(list(models), dtype=torch.long)
        parameters = {name: value[index] for name, value in self.parameters.items()}
        return type(self)(self.config, parameters, [self.encodings[i] for i in index.tolist()])

    def with_parameters(self, **parameters: Tensor) -> ModelStack:
        """Return a stack with some parameters replaced (dots in names written as `__`).

        Raises:
            ValueError: a name that the stack does not have.
        """
        named = {name.replace("__", "."): value for name, value in parameters.items()}
        if unknown := sorted(set(named) - set(self.parameters)):
            raise ValueError(
                f"no parameter {unknown[0]!r}; choose from {', '.join(self.parameters)}"
            )
        return type(self)(self.config, {**self.parameters, **named}, self.encodings)

    def call_hook(self, name: str, x: Tensor | None, *arguments: Tensor) -> Tensor | None:
        """Call one of the encoding's hooks, which never sees the model axis, for all models.

        An encoding with parameters is called through `vmap`; one without, whose `__init__` names
        no `generator`, once for all models; else model by model.

        Args:
            name: `embed`, `transform_query`, `transform_key` or `bias`.
            x: queries or keys, with a leading model axis, or `None` if the hook takes none.
            arguments: positions, the same for all models.

        Returns:
            the hook's value with a leading model axis, of size 1 where one value serves every
            model, or `None` if the encoding does not define the hook.
        """
        first = self.encodings[0]
        if name not in self.hooks:
            return None
        if self._shared:
            hook = getattr(first, name)
            return hook(*arguments)[None] if x is None else hook(x, *arguments)
        state = {k: v for k, v in self.parameters.items() if k.startswith(ENCODING)}
        if not state:
            inputs = [arguments if x is None else (x[m], *arguments) for m in range(self.n_models)]
            calls = zip(self.encodings, inputs, strict=True)
            return torch.stack([getattr(encoding, name)(*args) for encoding, args in calls])
        caller = _HookCaller(first)

        def one_model(state: dict[str, Tensor], x: Tensor | None) -> Tensor:
            inputs = arguments if x is None else (x, *arguments)
            return torch.func.functional_call(caller, state, (name, *inputs))

        in_dims = (0, None if x is None else 0)
        return torch.vmap(one_model, in_dims=in_dims)(state, x)

    @property
    def isometric(self) -> bool:
        """Whether the encoding's transforms are rotations, the same for every model."""
        return self._shared and is_isometric(self.encodings[0])

    def transform(self, side: str, x: Tensor, positions: Tensor) -> Tensor:
        """Apply `transform_query` or `transform_key` to queries or keys, if there is one."""
        turned = self.call_hook(f"transform_{side}", x, positions)
        return x if turned is None else turned


class _HookCaller(nn.Module):
    """Gives `functional_call`, which knows only `forward`, a way to an encoding's hooks."""

    def __init__(self, encoding: nn.Module) -> None:
        super().__init__()
        self.encoding = encoding

    def forward(self, name: str, *arguments: Tensor) -> Tensor:
        return getattr(self.encoding, name)(*arguments)


def _initial_parameters(config: ModelConfig, seed: int) -> dict[str, Tensor]:
    model = dict(config.draw(generator_for(Stream.WEIGHTS, seed)))
    encoding = config.new_encoding(seed)
    if isinstance(encoding, nn.Module):
        state = dict(encoding.named_parameters())
        if takes_generator(type(encoding)):  # else buffers are the same in every model
            state |= dict(encoding.named_buffers())
        model |= {f"{ENCODING}{name}": value.detach().clone() for name, value in state.items()}
    return model
