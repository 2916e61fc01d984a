"""The decoder of chapter 7, one at a time: in plain PyTorch and through x-transformers.

Same initial weights, same sequences, same optimizer as `lengthgen.transformer_training`; every
function here takes its `TransformerTraining` and returns the (models, steps) losses.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, layer_norm, scaled_dot_product_attention

from lengthgen.encodings import rotary_frequencies
from lengthgen.stack import ModelStack
from lengthgen.task import Stream, generator_for
from lengthgen.transformer import TransformerConfig
from lengthgen.transformer_training import TransformerTraining

__all__ = ["Decoder", "draw", "one_by_one", "through_x_transformers"]

Weights = dict[str, Tensor]


def draw(config: TransformerTraining) -> Tensor:
    """Draw what `lengthgen.transformer_training` trains on, (models, steps, batch, length)."""
    shape = (config.batch_size, config.length)
    tokens = torch.empty(len(config.seeds), config.steps, *shape, dtype=torch.long)
    for index, seed in enumerate(config.seeds):
        generator = generator_for(Stream.TRAINING_DATA, seed, config.offset)
        for step in range(config.steps):
            tokens[index, step] = torch.randint(config.model.vocabulary, shape, generator=generator)
            torch.randint(1, shape[:1], generator=generator)  # first positions: all 0 here
    return tokens


class _Block(nn.Module):
    """Attention and MLP, pre-norm, without biases and gains."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        d, self.n_heads = config.d_model, config.n_heads
        for name in ("query", "key", "value", "output"):
            setattr(self, name, nn.Linear(d, d, bias=False))
        self.expand = nn.Linear(d, 4 * d, bias=False)
        self.contract = nn.Linear(4 * d, d, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        h = layer_norm(x, x.shape[-1:])
        query, key, value = (
            layer(h).unflatten(-1, (self.n_heads, -1)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        query, key = _rotate(query, cos, sin), _rotate(key, cos, sin)
        mixed = scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.output(mixed.transpose(1, 2).flatten(2))
        h = layer_norm(x, x.shape[-1:])
        return x + self.contract(nn.functional.gelu(self.expand(h)))


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)


class Decoder(nn.Module):
    """A causal decoder with rotary positions; every position answers."""

    def __init__(self, config: TransformerConfig, length: int) -> None:
        super().__init__()
        self.token = nn.Embedding(config.vocabulary, config.d_model)
        self.blocks = nn.ModuleList([_Block(config) for _ in range(config.n_layers)])
        self.readout = nn.Linear(config.d_model, config.vocabulary, bias=False)
        angles = torch.arange(length)[:, None] * rotary_frequencies(config.d_head)
        self.register_buffer("cos", angles.cos().float(), persistent=False)
        self.register_buffer("sin", angles.sin().float(), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the answer's logits at every position, (batch, length, vocabulary)."""
        x = self.token(tokens)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return self.readout(layer_norm(x, x.shape[-1:]))


def one_by_one(config: TransformerTraining) -> Tensor:
    """Train one plain decoder after the other."""

    def new(weights: Weights) -> nn.Module:
        model = Decoder(config.model, config.length)
        state = {"token.weight": weights["token"], "readout.weight": weights["readout"].mT}
        for layer in range(config.model.n_layers):
            for name in ("query", "key", "value", "output", "expand", "contract"):
                state[f"blocks.{layer}.{name}.weight"] = weights[name][layer].mT
        model.load_state_dict(state)
        return model

    return _train(config, new)


def through_x_transformers(config: TransformerTraining) -> Tensor:
    """Train one decoder of x-transformers after the other.

    Its options give our decoder but for the gains of its normalizations. They stay at 1 here, so
    that both are the same function with the same parameters, and their losses can be compared.
    """
    import x_transformers

    def new(weights: Weights) -> nn.Module:
        sizes = config.model
        layers = x_transformers.Decoder(
            dim=sizes.d_model,
            depth=sizes.n_layers,
            heads=sizes.n_heads,
            attn_dim_head=sizes.d_head,
            attn_flash=True,
            rotary_pos_emb=True,
            rotary_emb_dim=sizes.d_head,
            ff_no_bias=True,
            verbose=False,
        )
        model = x_transformers.TransformerWrapper(
            num_tokens=sizes.vocabulary,
            max_seq_len=config.length,
            use_abs_pos_emb=False,
            attn_layers=layers,
        )
        state = {
            "token_emb.emb.weight": weights["token"],
            "to_logits.weight": weights["readout"].mT,
        }
        for layer in range(sizes.n_layers):
            attention, feed = (f"attn_layers.layers.{2 * layer + i}.1" for i in (0, 1))
            for theirs, ours in (("q", "query"), ("k", "key"), ("v", "value"), ("out", "output")):
                state[f"{attention}.to_{theirs}.weight"] = weights[ours][layer].mT
            state[f"{feed}.ff.0.0.weight"] = weights["expand"][layer].mT
            state[f"{feed}.ff.2.weight"] = weights["contract"][layer].mT
        own = dict(model.named_parameters())
        gains = {name for name in own if name.endswith("gamma")}
        if set(own) - gains != set(state):
            raise ValueError(f"x-transformers has other parameters: {sorted(set(own) - gains)}")
        model.load_state_dict(state, strict=False)
        for name in gains:
            own[name].requires_grad_(False)
        return model

    return _train(config, new)


def _train(config: TransformerTraining, new: Callable[[Weights], nn.Module]) -> Tensor:
    """Train one model after the other, each from the weights that the package would draw."""
    tokens = draw(config)
    weights = ModelStack.initialize(config.model, config.seeds).parameters
    losses = torch.empty(len(config.seeds), config.steps)
    for index in range(len(config.seeds)):
        model = new({name: value[index] for name, value in weights.items()})
        trained = [p for p in model.parameters() if p.requires_grad]
        adamw = torch.optim.AdamW(trained, config.learning_rate, weight_decay=0.0, fused=True)
        for step in range(config.steps):
            batch = tokens[index, step]
            answers = model(batch)[:, config.offset :]
            loss = cross_entropy(answers.flatten(0, 1), batch[:, : -config.offset].flatten())
            adamw.zero_grad()
            loss.backward()
            adamw.step()
            losses[index, step] = loss.detach()
    return losses
