"""The head of chapter 1 in JAX: `jit` of a `scan` over steps, `vmap` over models, Adam of optax."""

from __future__ import annotations

import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.heads import draw, initial
from lengthgen.encodings import rotary_frequencies
from lengthgen.training import TrainingConfig

__all__ = ["compiled"]


def compiled(config: TrainingConfig) -> tuple[Callable[[], np.ndarray], float]:
    """Compile the training of a stack, whole.

    Returns:
        a function that draws the data, trains and returns the (models, steps) losses; and the
        seconds that compiling took.
    """
    adam = optax.adam(config.learning_rate)
    loss = _loss(config)

    def train(weights: dict, tokens: jax.Array, lengths: jax.Array, targets: jax.Array):
        def step(carry: tuple, batch: tuple) -> tuple:
            weights, state = carry
            value, gradient = jax.vmap(jax.value_and_grad(loss))(weights, *batch)
            change, state = adam.update(gradient, state)
            return (optax.apply_updates(weights, change), state), value

        carry = (weights, adam.init(weights))
        return jax.lax.scan(step, carry, (tokens, lengths, targets))[1].T

    def inputs() -> tuple:
        tokens, lengths, targets = (x.numpy().astype(np.int32) for x in draw(config))
        weights = {name: value.numpy() for name, value in initial(config).items()}
        return weights, tokens, lengths, targets

    began = time.perf_counter()
    program = jax.jit(train).lower(*inputs()).compile()
    seconds = time.perf_counter() - began
    return lambda: np.asarray(program(*inputs())), seconds


def _loss(config: TrainingConfig) -> Callable[..., jax.Array]:
    """Return the loss of one model on one batch of padded sequences."""
    longest, width = config.lengths[1], config.head.d_head
    angles = np.arange(longest)[:, None] * rotary_frequencies(width).numpy()
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)

    def rotate(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
        even, odd = x[..., 0::2], x[..., 1::2]
        turned = jnp.stack([even * cos - odd * sin, even * sin + odd * cos], -1)
        return turned.reshape(x.shape)

    def loss(weights: dict, tokens: jax.Array, length: jax.Array, target: jax.Array) -> jax.Array:
        # As a product with a one-hot matrix: on a processor the gradient of a gather is slow.
        x = jax.nn.one_hot(tokens, config.head.vocabulary) @ weights["token"]
        last = length - 1
        key = rotate(x @ weights["key"], cos, sin)
        query = rotate(
            x[:, last] @ weights["query"], jnp.take(cos, last, 0), jnp.take(sin, last, 0)
        )
        logits = jnp.einsum("bld,bd->bl", key, query) / width**0.5
        logits = jnp.where(jnp.arange(longest) <= last, logits, -jnp.inf)
        mixed = jnp.einsum("bl,bld->bd", jax.nn.softmax(logits), x)
        answer = mixed @ weights["value"] @ weights["output"]
        return optax.softmax_cross_entropy_with_integer_labels(answer, target).mean()

    return loss
