"""Block heads, which predict a whole block of tokens in one forward.

They are DFlash (2602.06036), its causal variant JetSpec (2606.18394), DSpark (2607.05147) with
Markov and confidence heads, DFlash 2 with convolutions and a path selector, and XPress with a
refiner.

The head attends to a context. For each committed token and each layer, the context holds one row of
keys and values, made from the target's fused features. The block follows the context: the root, and
a mask at each further place. One forward scores all places of the block.
"""

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from ..core.cache import KVCache
from ..models.attention import Seen
from ..models.base import Output
from ..models.config import ModelConfig
from ..models.decoder import Decoder
from ..models.draft_vocabulary import LACKING, over_target_vocabulary
from ..models.kinds import LayerConfig
from ..models.layer import Layer, Nodes
from ..models.layers import linear, lookup, matrix, param, rms_norm, value_of
from .base import HeadModule, Kind, embeddings, run_own_layers
from .block_config import BlockConfig
from .convolution import ConvolvedLayer
from .corrections import Markov, Refiner


class BlockHead(HeadModule):
    """A block head.

    ``fc`` [E, len(taps) * target's E] and ``hidden_norm`` make the context from the taps. The
    layers attend to the context, and ``norm`` precedes the output matrix. ``draft_to_target`` int32
    [Vd] is as in ``Eagle3Head``, or None for a head that knows the whole vocabulary.
    """

    config: BlockConfig

    def __init__(self, config: BlockConfig, key: jax.Array, dtype=None):
        layers = config.layers
        E = layers.hidden_size
        Vd = config.draft_vocab_size or config.vocab_size
        dtype = jnp.dtype(dtype or layers.dtype)
        fc, embed, head, markov, confidence, *keys = jax.random.split(key, layers.num_layers + 5)
        self.config = config
        self.fc = matrix(fc, (E, len(config.taps) * config.target_size), ("embed", None), dtype)
        self.hidden_norm, self.norm = (param(jnp.ones(E, dtype), ("embed",)) for _ in range(2))
        self.layers = nnx.List([self._layer(layer, k, dtype) for layer, k in zip(layers.layers, keys)])
        self.embed = matrix(embed, (layers.vocab_size, E), ("vocab", "embed"), dtype) if config.own_embedding else None
        self.head = matrix(head, (Vd, E), ("vocab", "embed"), dtype) if config.own_head else None
        offsets = nnx.Variable(jnp.zeros(Vd, jnp.int32), axes=(None,))
        self.draft_to_target = offsets if Vd != config.vocab_size else None
        V = config.vocab_size
        r = config.markov_rank
        R = config.refiner_rank
        self.markov = Markov(config.markov, V, Vd, r, E, markov, dtype) if r else None
        sizes = R, config.refiner_size, config.block_size
        self.refiner = Refiner(V, Vd, *sizes, E, markov, dtype) if R else None
        width = E + config.markov_rank * config.confidence_markov
        self.confidence = matrix(confidence, (1, width), (None, None), dtype) if config.confidence else None
        self.confidence_bias = param(jnp.zeros(1, dtype), (None,)) if config.confidence else None

    def _layer(self, layer: LayerConfig, key: jax.Array, dtype) -> Layer:
        config = self.config
        if not config.conv_taps:
            return Layer(layer, key, dtype)
        return ConvolvedLayer(layer, key, dtype, config.conv_taps, config.conv_group, config.block_size)

    def fuse(self, target: Decoder | None, taps: tuple) -> jax.Array:
        """The features float32 [B, N, E] of tokens with taps [B, N, target's E]."""
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
        config = self.config.layers
        dtype = self.fc[...].dtype
        x = embeddings(self.embed, target, tokens)
        new_rows = ()
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
        see ``codes``; None for no correction.
        """
        scores = target.logits(hidden) if self.head is None else linear(hidden, self.head[...])
        if self.draft_to_target is not None:
            scores = over_target_vocabulary(scores, self.draft_to_target[...], self.config.vocab_size)
        return scores if code is None else scores + self.correction(code)

    def codes(self, hidden: jax.Array, before: jax.Array) -> jax.Array | None:
        """Codes float32 [..., D, r] of the D drafting places; None for a head without corrections.

        Args:
          hidden: float32 [..., block size, E], the hidden states of all places of a block.
          before: int32 [..., block size], the token before the token that each place predicts.
        """
        first = self.config.block_size - self.config.drafts
        if self.refiner is not None:
            return self.refiner.codes(hidden, before)[..., first:, :]
        return None if self.markov is None else self.markov.codes(hidden[..., first:, :], before[..., first:])

    def correction(self, code: jax.Array) -> jax.Array:
        """The correction float32 [..., V] of logits, from the codes [..., r] of places."""
        correct = self.refiner if self.markov is None else self.markov
        assert correct is not None
        scores = correct(code)
        if self.draft_to_target is None:
            return scores
        return over_target_vocabulary(scores, self.draft_to_target[...], self.config.vocab_size, 0.0)

    def corrected(self, scores: jax.Array, code: jax.Array) -> jax.Array:
        """The logits float32 [..., V] that tokens are drawn from.

        Tokens that are not candidates have the logit ``LACKING``.

        Args:
          scores: float32 [..., V], the logits before the correction.
          code: float32 [..., r], the Markov codes of the places.
        """
        if not self.config.candidates:
            return scores + self.correction(code)
        assert self.markov is not None
        unary, tokens = lax.top_k(scores, self.config.candidates)
        rows = lookup(self.markov.second[...], tokens).astype(jnp.float32)
        sums = unary + jnp.einsum("...kr,...r->...k", rows, code)
        return jnp.put_along_axis(jnp.full_like(scores, LACKING), tokens, sums, -1, inplace=False)

    def sure(self, hidden: jax.Array, before: jax.Array) -> jax.Array:
        """DSpark's confidence float32 [...] in the tokens of places.

        It estimates the probability that a place's token is accepted if all tokens before it are.
        It depends on the place's hidden state [..., E] and on the token before it, int32 [...],
        never on the token itself.
        """
        assert self.confidence is not None
        inputs = hidden
        if self.config.confidence_markov:
            assert self.markov is not None
            inputs = jnp.concatenate([hidden, self.markov.embedding(before)], -1)
        return jax.nn.sigmoid(linear(inputs, self.confidence[...], value_of(self.confidence_bias))[..., 0])


def usual(target: ModelConfig, layer: ModelConfig) -> BlockConfig:
    """Five layers and blocks of eight places, as DFlash has them."""
    L = target.num_layers
    taps = min(1, L), L // 2, max(L - 2, 0)
    layers = layer.replace(num_layers=5, windows=layer.windows * 5)
    return BlockConfig(layers, target.hidden_size, L, taps, mask_token=0, block_size=8)


KIND = Kind(BlockConfig, BlockHead, usual)
