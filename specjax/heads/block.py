"""Block drafting in one pass: DFlash (2602.06036), its causal variant (JetSpec, 2606.18394), Markov and confidence heads (DSpark, 2607.05147).

The head attends to a context, keys and values that each of its layers makes of the target's fused features, one row for each committed
token; beside it stands the block: the root and masks. One forward scores all places of the block.
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from ..cache import KVCache
from ..errors import ConfigError
from ..models.config import ModelConfig
from ..models.decoder import Decoder, Layer, Output, run_layers
from ..models.layers import linear, lookup, matrix, param, rms_norm, rotary, value_of
from .eagle import embeddings

MARKOV = ("vanilla", "gated", "rnn")
"""Kinds of Markov corrections, see ``Markov``."""


@dataclasses.dataclass(frozen=True)
class BlockConfig:
    """A block head.

    Attributes:
      layers: its decoder layers; ``vocab_size`` is the target's.
      target_size, target_layers: the target's width and depth.
      taps: layers of the target whose inputs are read. Published configurations name the layers whose *outputs* are read, one less.
      mask_token: what stands at the places that are not known yet.
      block_size: places of a block, the root included.
      causal: whether a place sees only those before it (JetSpec).
      from_root: whether a place says the token *after* it, so that the root's place is used too (DSpark); else each place says its own.
      markov_rank: of the correction by the token before (DSpark); 0 for none.
      markov: its kind, one of ``MARKOV``.
      confidence: whether there is a confidence head.
      confidence_markov: whether that also reads the Markov embedding of the token before.
      own_embedding, own_head: whether the checkpoint brings them; else the target's serve.
    """

    layers: ModelConfig
    target_size: int
    target_layers: int
    taps: tuple[int, ...]
    mask_token: int
    block_size: int = 16
    causal: bool = False
    from_root: bool = False
    markov_rank: int = 0
    markov: str = "vanilla"
    confidence: bool = False
    confidence_markov: bool = False
    own_embedding: bool = False
    own_head: bool = False
    kind: ClassVar[str] = "block"

    def __post_init__(self):
        if self.layers.hidden_size != self.target_size and not (self.own_embedding and self.own_head):
            raise ConfigError(
                f"the block head is {self.layers.hidden_size} wide and its target {self.target_size}: it needs an embedding and a head of its own"
            )
        if self.markov not in MARKOV:
            raise ConfigError(f"the block head's Markov correction {self.markov!r} is not supported; use one of {', '.join(MARKOV)}")
        if self.confidence_markov and not self.markov_rank:
            raise ConfigError("the block head's confidence reads a Markov embedding, and markov_rank is 0")

    @property
    def vocab_size(self) -> int:
        return self.layers.vocab_size

    @property
    def drafts(self) -> int:
        """Tokens that one block drafts."""
        return self.block_size - (not self.from_root)


class Markov(nnx.Module):
    """A low-rank correction of a place's logits: ``second`` [V, r] times a code of the token before it, ``first`` [V, r] of that token.

    "gated" multiplies the code by the sigmoid of ``gate`` [r, E + r] of the place's hidden state and itself. "rnn" has a state beside it,
    zeros where a block begins: ``gate`` [3r, 2r + E] of state, code and hidden state says how much of the state stays, what else it
    becomes, and the code that is used.
    """

    def __init__(self, config: BlockConfig, key: jax.Array, dtype):
        V, r, E = config.vocab_size, config.markov_rank, config.layers.hidden_size
        first, second, gate = jax.random.split(key, 3)
        self.kind = config.markov
        self.first = matrix(first, (V, r), ("vocab", None), dtype)
        self.second = matrix(second, (V, r), ("vocab", None), dtype, 0.0)
        shape = {"gated": (r, E + r), "rnn": (3 * r, 2 * r + E)}.get(self.kind)
        self.gate = matrix(gate, shape, (None, None), dtype) if shape else None
        self.gate_bias = param(jnp.zeros(shape[0], dtype), (None,)) if shape else None

    def embedding(self, before: jax.Array) -> jax.Array:
        """Float32 [..., r] of tokens int32 [...]."""
        return lookup(self.first[...], before).astype(jnp.float32)

    def step(self, state: jax.Array, hidden: jax.Array, before: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The state float32 [..., r] after a place, and the place's code: of the state before, its hidden state [..., E] and int32 [...],
        the token before it."""
        code = self.embedding(before)
        if self.kind == "vanilla":
            return state, code
        gate = lambda *read: linear(jnp.concatenate(read, -1), self.gate[...], value_of(self.gate_bias))
        if self.kind == "gated":
            return state, code * jax.nn.sigmoid(gate(hidden, code))
        stays, becomes, code = jnp.split(gate(state, code, hidden), 3, -1)
        stays = jax.nn.sigmoid(stays)
        return stays * state + (1 - stays) * jnp.tanh(becomes), jnp.tanh(code)

    def codes(self, hidden: jax.Array, before: jax.Array) -> jax.Array:
        """Codes float32 [..., D, r] of the D places of blocks, one after another: of hidden states [..., D, E] and tokens int32 [..., D]."""
        places = (jnp.moveaxis(hidden, -2, 0), jnp.moveaxis(before, -1, 0))
        state = jnp.zeros((*before.shape[:-1], self.first.shape[1]))
        return jnp.moveaxis(lax.scan(lambda state, place: self.step(state, *place), state, places)[1], 0, -2)

    def __call__(self, code: jax.Array) -> jax.Array:
        """Float32 [..., V] to be added to the logits of places with these codes."""
        return linear(code, self.second[...])


class BlockHead(nnx.Module):
    """``fc`` [E, len(taps) * target's E] and ``hidden_norm`` make the context, the layers attend to it, ``norm`` goes before the output."""

    def __init__(self, config: BlockConfig, key: jax.Array, dtype=None):
        layers, E = config.layers, config.layers.hidden_size
        dtype = jnp.dtype(dtype or layers.dtype)
        fc, embed, head, markov, confidence, *keys = jax.random.split(key, layers.num_layers + 5)
        self.config = config
        self.fc = matrix(fc, (E, len(config.taps) * config.target_size), ("embed", None), dtype)
        self.hidden_norm, self.norm = (param(jnp.ones(E, dtype), ("embed",)) for _ in range(2))
        self.layers = nnx.List([Layer(layers, k, dtype) for k in keys])
        shape, axes = (layers.vocab_size, E), ("vocab", "embed")
        self.embed = matrix(embed, shape, axes, dtype) if config.own_embedding else None
        self.head = matrix(head, shape, axes, dtype) if config.own_head else None
        self.markov = Markov(config, markov, dtype) if config.markov_rank else None
        read = E + config.markov_rank * config.confidence_markov
        self.confidence = matrix(confidence, (1, read), (None, None), dtype) if config.confidence else None
        self.confidence_bias = param(jnp.zeros(1, dtype), (None,)) if config.confidence else None

    def context(self, taps: tuple, positions: jax.Array, dtype) -> tuple:
        """For each layer the keys and values [B, K, N, D] of N committed tokens, from their taps [B, N, E] and positions int32 [B, N]."""
        layers = self.config.layers
        fused = rms_norm(linear(jnp.concatenate(taps, -1), self.fc[...]), self.hidden_norm[...], layers.norm_eps)
        angles = rotary(positions, layers)
        return tuple(layer.keys_values(fused, layers, angles, dtype) for layer in self.layers)

    def __call__(self, target: Decoder, tokens, positions, cache: KVCache | None, mask=None, rows: tuple | None = None) -> Output:
        """One forward of a block.

        Args:
          tokens, positions: int32 [B, N], the root and masks, and where they stand.
          cache: the context, all of which every place sees.
          mask, rows: in training, where there is no cache: rows of a context, and bool [B, N, M] of what each place sees of them and of
            the block. By default a block without rows, causal or not.

        Returns an Output with ``hidden`` float32 [B, N, E] after the final norm.
        """
        N, config = tokens.shape[1], self.config.layers
        if mask is None:
            mask = jnp.tril(jnp.ones((N, N), bool)) if self.config.causal else jnp.ones((N, N), bool)
        dtype = self.fc[...].dtype if cache is None else cache.layers[0][0].dtype
        x = embeddings(self.embed, target, tokens)
        x, new_rows, _ = run_layers(self.layers, config, x, positions, mask, cache, dtype, rows=rows)
        return Output(rms_norm(x, self.norm[...], config.norm_eps), new_rows)

    def logits(self, target: Decoder, hidden: jax.Array, code: jax.Array | None = None) -> jax.Array:
        """Float32 [..., V] of hidden states [..., E], corrected by the codes [..., r] of a Markov head; None leaves that out."""
        scores = target.logits(hidden) if self.head is None else linear(hidden, self.head[...])
        return scores if code is None else scores + self.markov(code)

    def sure(self, hidden: jax.Array, before: jax.Array) -> jax.Array:
        """Float32 [...], DSpark's confidence: how probable it is that the token of each place is accepted if those before it are.

        Reads the place's hidden state [..., E] and the token before, never the token itself.
        """
        read = jnp.concatenate([hidden, self.markov.embedding(before)], -1) if self.config.confidence_markov else hidden
        return jax.nn.sigmoid(linear(read, self.confidence[...], value_of(self.confidence_bias))[..., 0])
