"""Block heads, which predict a whole block of tokens in one forward.

They are DFlash (2602.06036), its causal variant JetSpec (2606.18394), and DSpark (2607.05147) with
Markov and confidence heads.

The head attends to a context. For each committed token and each layer, the context holds one row of
keys and values, made from the target's fused features. The block follows the context: the root, and
a mask at each further place. One forward scores all places of the block.
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from ..cache import KVCache
from ..errors import ConfigError
from ..models.attention import Seen
from ..models.base import Output
from ..models.config import ModelConfig
from ..models.decoder import Decoder
from ..models.layer import Layer, Nodes
from ..models.layers import linear, lookup, matrix, param, rms_norm, value_of
from .base import HeadConfig, HeadModule, Kind, embeddings, over_target_vocabulary, run_own_layers

MARKOV = ("vanilla", "gated", "rnn")
"""Kinds of Markov corrections, see ``Markov``."""


@dataclasses.dataclass(frozen=True)
class BlockConfig(HeadConfig):
    """The configuration of a block head.

    Attributes:
      layers: its decoder layers; ``vocab_size`` is the target's.
      target_size, target_layers: the target's width and depth.
      taps: the layers of the target whose inputs the head reads.
      mask_token: the token at the places that are not known yet.
      block_size: the number of places in a block, the root's included.
      causal: whether a place sees only itself and the places before it (JetSpec).
      from_root: whether a place predicts the token *after* it, so that the root's place predicts
        too (DSpark). Otherwise each place predicts its own token.
      markov_rank: the rank of the correction by the token before (DSpark); 0 for no correction.
      markov: the kind of correction, one of ``MARKOV``.
      confidence: whether the head has a confidence head.
      confidence_markov: whether the confidence head also reads the Markov embedding of the token
        before.
      own_embedding, own_head: whether the head has an embedding and an output matrix of its own;
        otherwise it uses the target's.
      draft_vocab_size: the number of tokens that the head knows; None for all. A smaller number
        needs an output matrix of its own.
      causal_windows: whether layers with an attention window are causal even if the other layers
        are not (speculators).
    """

    layers: ModelConfig
    target_size: int
    target_layers: int
    taps: tuple[int, ...]
    mask_token: int = dataclasses.field()  # not the default of the base class
    block_size: int = 16
    causal: bool = False
    from_root: bool = False
    markov_rank: int = 0
    markov: str = "vanilla"
    confidence: bool = False
    confidence_markov: bool = False
    own_embedding: bool = False
    own_head: bool = False
    draft_vocab_size: int | None = None
    causal_windows: bool = False
    kind: ClassVar[str] = "block"

    def __post_init__(self):
        if self.draft_vocab_size is None:
            object.__setattr__(self, "draft_vocab_size", self.vocab_size)
        own, width = self.own_embedding and self.own_head, self.layers.hidden_size
        Vd = self.draft_vocab_size or self.vocab_size
        if width != self.target_size and not own:
            raise ConfigError(
                f"the block head is {width} wide and its target {self.target_size}: "
                "it needs an embedding and an output matrix of its own"
            )
        if self.markov not in MARKOV:
            raise ConfigError(f"the Markov correction {self.markov!r} is not supported; use one of {', '.join(MARKOV)}")
        if self.confidence_markov and not self.markov_rank:
            raise ConfigError("the block head's confidence reads a Markov embedding, and markov_rank is 0; raise it")
        if not 0 < Vd <= self.vocab_size:
            raise ConfigError(f"draft_vocab_size is {Vd}; it must be from 1 to {self.vocab_size}")
        if Vd < self.vocab_size and not self.own_head:
            raise ConfigError(
                f"the block head knows {Vd} of {self.vocab_size} tokens; it needs an output matrix of its own"
            )
        if self.drafts < 1:
            raise ConfigError(f"block_size {self.block_size} leaves no place to draft at; use a larger one")

    @property
    def vocab_size(self) -> int:
        return self.layers.vocab_size

    @property
    def drafts(self) -> int:
        """The number of tokens that one block drafts."""
        return self.block_size - (not self.from_root)


class Markov(nnx.Module):
    """A low-rank correction of a place's logits by the token before the place.

    The correction is ``second`` [Vd, r] times a code of that token. ``kind`` defines the code:

    - "vanilla": the code is the token's row of ``first`` [V, r].
    - "gated": the same row, multiplied by a gate. The gate is the sigmoid of ``gate`` [r, E + r]
      times the place's hidden state and the row.
    - "rnn": a state runs along the block, zero at its first place. ``gate`` [3r, 2r + E] times
      state, row and hidden state gives three vectors: how much of the state stays, the new part of
      the state, and the code.
    """

    def __init__(self, config: BlockConfig, key: jax.Array, dtype):
        V, r, E = config.vocab_size, config.markov_rank, config.layers.hidden_size
        first, second, gate = jax.random.split(key, 3)
        self.kind = config.markov
        self.first = matrix(first, (V, r), ("vocab", None), dtype)
        self.second = matrix(second, (config.draft_vocab_size, r), ("vocab", None), dtype, 0.0)
        shape = {"gated": (r, E + r), "rnn": (3 * r, 2 * r + E)}.get(self.kind)
        self.gate = matrix(gate, shape, (None, None), dtype) if shape else None
        self.gate_bias = param(jnp.zeros(shape[0], dtype), (None,)) if shape else None

    def embedding(self, before: jax.Array) -> jax.Array:
        """Rows float32 [..., r] of tokens int32 [...]."""
        return lookup(self.first[...], before).astype(jnp.float32)

    def step(self, state: jax.Array, hidden: jax.Array, before: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The state float32 [..., r] after a place, and the place's code.

        Args:
          state: float32 [..., r], before the place.
          hidden: float32 [..., E], of the place.
          before: int32 [...], the token before the place.
        """
        code = self.embedding(before)
        if self.gate is None:  # "vanilla"
            return state, code
        weight, bias = self.gate[...], value_of(self.gate_bias)
        gate = lambda *read: linear(jnp.concatenate(read, -1), weight, bias)
        if self.kind == "gated":
            return state, code * jax.nn.sigmoid(gate(hidden, code))
        stays, becomes, code = jnp.split(gate(state, code, hidden), 3, -1)
        stays = jax.nn.sigmoid(stays)
        return stays * state + (1 - stays) * jnp.tanh(becomes), jnp.tanh(code)

    def codes(self, hidden: jax.Array, before: jax.Array) -> jax.Array:
        """Codes float32 [..., D, r] of D places of a block, in order.

        Args:
          hidden: float32 [..., D, E], the hidden states of the places.
          before: int32 [..., D], the token before each place.
        """
        places = (jnp.moveaxis(hidden, -2, 0), jnp.moveaxis(before, -1, 0))
        state = jnp.zeros((*before.shape[:-1], self.first.shape[1]))
        return jnp.moveaxis(lax.scan(lambda state, place: self.step(state, *place), state, places)[1], 0, -2)

    def __call__(self, code: jax.Array) -> jax.Array:
        """The correction float32 [..., Vd] over the draft vocabulary, of codes [..., r]."""
        return linear(code, self.second[...])


class BlockHead(HeadModule):
    """A block head.

    ``fc`` [E, len(taps) * target's E] and ``hidden_norm`` make the context from the taps. The
    layers attend to the context, and ``norm`` precedes the output matrix. ``draft_to_target`` int32
    [Vd] is as in ``Eagle3Head``, or None for a head that knows the whole vocabulary.
    """

    config: BlockConfig

    def __init__(self, config: BlockConfig, key: jax.Array, dtype=None):
        layers, E, Vd = config.layers, config.layers.hidden_size, config.draft_vocab_size
        dtype = jnp.dtype(dtype or layers.dtype)
        fc, embed, head, markov, confidence, *keys = jax.random.split(key, layers.num_layers + 5)
        self.config = config
        self.fc = matrix(fc, (E, len(config.taps) * config.target_size), ("embed", None), dtype)
        self.hidden_norm, self.norm = (param(jnp.ones(E, dtype), ("embed",)) for _ in range(2))
        self.layers = nnx.List([Layer(layer, k, dtype) for layer, k in zip(layers.layers, keys)])
        self.embed = matrix(embed, (layers.vocab_size, E), ("vocab", "embed"), dtype) if config.own_embedding else None
        self.head = matrix(head, (Vd, E), ("vocab", "embed"), dtype) if config.own_head else None
        offsets = nnx.Variable(jnp.zeros(Vd, jnp.int32), axes=(None,))
        self.draft_to_target = offsets if Vd != config.vocab_size else None
        self.markov = Markov(config, markov, dtype) if config.markov_rank else None
        read = E + config.markov_rank * config.confidence_markov
        self.confidence = matrix(confidence, (1, read), (None, None), dtype) if config.confidence else None
        self.confidence_bias = param(jnp.zeros(1, dtype), (None,)) if config.confidence else None

    def fuse(self, target: Decoder | None, taps: tuple) -> jax.Array:
        """The features float32 [B, N, E] of tokens with these taps [B, N, target's E].

        The context is made from them.
        """
        fused = linear(jnp.concatenate(taps, -1), self.fc[...])
        return rms_norm(fused, self.hidden_norm[...], self.config.layers.norm_eps)

    def context(self, taps: tuple, positions: jax.Array, dtype) -> tuple:
        """For each layer the keys and values [B, K, N, D] of N committed tokens.

        Args:
          taps: the tokens' taps, each [B, N, target's E].
          positions: int32 [B, N], the tokens' positions.
        """
        features = self.fuse(None, taps)
        B, N = positions.shape
        nodes = Nodes(positions, Seen.causal(N), dtype, jnp.zeros(B, jnp.int32))
        return tuple(layer.mixer.keys_values(features, nodes) for layer in self.layers)

    def __call__(
        self, target: Decoder, tokens, positions, cache: KVCache | None, mask=None, rows: tuple | None = None
    ) -> Output:
        """One forward of a block.

        Args:
          tokens, positions: int32 [B, N], the root and the masks, and their positions.
          cache: the context. Every place sees all of it. None in training.
          rows: in training, the rows of a context, which come before those of the block.
          mask: in training, bool [B, N, M], the rows that each place sees. By default each place
            sees the places that the configuration allows.

        Returns an Output with ``hidden`` float32 [B, N, E] after the final norm.
        """
        config, dtype = self.config.layers, self.fc[...].dtype
        x, new_rows = embeddings(self.embed, target, tokens), ()
        masks = self._masks(tokens.shape[1]) if mask is None else (mask,) * config.num_layers
        for i, mask in enumerate(masks):
            one = slice(i, i + 1)
            past = None if cache is None else cache.replace(layers=cache.layers[one])
            earlier = None if rows is None else rows[one]
            x, row = run_own_layers(self.layers[one], x, positions, mask, past, dtype, rows=earlier)
            new_rows += row
        return Output(rms_norm(x, self.norm[...], config.norm_eps), new_rows)

    def _masks(self, places: int) -> list[jax.Array]:
        """For each layer bool [N, N], the places of a block that each place sees."""
        whole = jnp.ones((places, places), bool)
        windows = self.config.layers.windows or (None,) * self.config.layers.num_layers
        causal = [self.config.causal or self.config.causal_windows and window is not None for window in windows]
        return [jnp.tril(whole) if c else whole for c in causal]

    def logits(self, target: Decoder, hidden: jax.Array, code: jax.Array | None = None) -> jax.Array:
        """Logits float32 [..., V] of hidden states [..., E].

        Tokens that the head does not know have the logit ``LACKING``. ``code``: float32 [..., r],
        the Markov codes of the places; None for no correction.
        """
        scores = target.logits(hidden) if self.head is None else linear(hidden, self.head[...])
        if self.draft_to_target is not None:
            scores = over_target_vocabulary(scores, self.draft_to_target[...], self.config.vocab_size)
        return scores if code is None else scores + self.correction(code)

    def correction(self, code: jax.Array) -> jax.Array:
        """The correction float32 [..., V] of logits, from the Markov codes [..., r] of places."""
        assert self.markov is not None
        scores = self.markov(code)
        if self.draft_to_target is None:
            return scores
        return over_target_vocabulary(scores, self.draft_to_target[...], self.config.vocab_size, 0.0)

    def sure(self, hidden: jax.Array, before: jax.Array) -> jax.Array:
        """DSpark's confidence float32 [...] in the tokens of places.

        It estimates the probability that a place's token is accepted if all tokens before it are.
        It depends on the place's hidden state [..., E] and on the token before it, int32 [...],
        never on the token itself.
        """
        assert self.confidence is not None
        read = hidden
        if self.config.confidence_markov:
            assert self.markov is not None
            read = jnp.concatenate([hidden, self.markov.embedding(before)], -1)
        return jax.nn.sigmoid(linear(read, self.confidence[...], value_of(self.confidence_bias))[..., 0])


KIND = Kind(BlockConfig, BlockHead)
