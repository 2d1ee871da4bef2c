"""The transformer: one forward for training, prefill, plain decoding and trees.

Modules hold parameters, the names of their axes and their static configuration. A call reads the
cache and never writes it. It returns the key/value rows of its nodes, and ``cache.commit`` writes
the accepted ones.
"""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx

from ..core.cache import KVCache
from ..parallel import whole_features
from .attention import Seen
from .base import Output
from .config import ModelConfig
from .encoder import Encoder
from .layer import Layer, Nodes
from .layers import linear, lookup, matrix, normalize, param, value_of
from .offload import fetch
from .per_layer import PerLayerInputs
from .relative_positions import Alibi, RelativeBias


@dataclasses.dataclass(frozen=True)
class Skip:
    """The sub-layers that a forward skips, given by the numbers of their layers. Static."""

    attention: tuple[int, ...] = ()
    mlp: tuple[int, ...] = ()


class Decoder(nnx.Module):
    """A language model: a decoder, or an encoder and a decoder.

    It has ``embed`` [V, E], layers, a final norm, and ``head`` [V, E] unless the embedding is tied.
    Some families also have ``positions`` [P, E], a table of learned positions; ``project_in``
    [E, W] and ``project_out`` [W, E] around an embedding of another width W; ``per_layer``;
    ``embed_norm``, ``relative`` and ``logit_bias`` [V]; and ``encoder``.
    """

    def __init__(self, config: ModelConfig, key: jax.Array, dtype=None):
        dtype = jnp.dtype(dtype or config.dtype)
        embed_key, head_key, *keys = jax.random.split(key, config.num_layers + 2)
        E, width = config.hidden_size, config.embed_size or config.hidden_size
        self.config = config
        self.embed = matrix(embed_key, (config.vocab_size, width), ("table", "width"), dtype)
        self.layers = nnx.List([Layer(layer, k, dtype) for layer, k in zip(config.layers, keys)])
        ones = jnp.full(E, 1 - config.norm_offset, dtype)
        self.norm = param(ones, ("embed",)) if config.final_norm else None
        biased = config.final_norm and config.norm == "layer"
        self.norm_bias = param(jnp.zeros(E, dtype), ("embed",)) if biased else None
        self.head = (
            None if config.tie_embeddings else matrix(head_key, (config.vocab_size, width), ("vocab", "embed"), dtype)
        )
        places, first, last, own = jax.random.split(jax.random.fold_in(embed_key, 1), 4)
        rows = config.max_position_embeddings + (config.position_offset or 0)
        learned = config.position_offset is not None
        self.positions = matrix(places, (rows, E), ("table", "width"), dtype) if learned else None
        projected = width != E
        self.project_in = matrix(first, (E, width), ("embed", None), dtype) if projected else None
        self.project_out = matrix(last, (width, E), (None, "embed"), dtype) if projected else None
        layer = config.layer(0)
        self.per_layer = PerLayerInputs(layer, config.per_layer_vocab, own, dtype) if config.per_layer_size else None
        distances, reads = jax.random.split(jax.random.fold_in(embed_key, 2))
        self.embed_norm = param(jnp.ones(E, dtype), ("embed",)) if config.embed_norm else None
        self.embed_norm_bias = param(jnp.zeros(E, dtype), ("embed",)) if config.embed_norm else None
        relative = config.relative
        if relative is not None and not isinstance(relative, Alibi):
            relative = RelativeBias(relative, False, config.num_heads, distances, dtype)
        self.relative = relative
        self.logit_bias = param(jnp.zeros(config.vocab_size, dtype), ("vocab",)) if config.logit_bias else None
        self.encoder = Encoder(config.encoder, reads, dtype) if config.encoder else None

    def __call__(
        self,
        tokens: jax.Array,
        positions: jax.Array,
        mask: jax.Array | Seen,
        cache: KVCache | None = None,
        *,
        rows: tuple | None = None,
        taps: tuple[int, ...] = (),
        rope_lengths: jax.Array | None = None,
        row_positions: jax.Array | None = None,
        skip: Skip = Skip(),
        computed: tuple | None = None,
    ) -> Output:
        """Scores N nodes that follow the cache.

        Args:
          tokens, positions: int32 [B, N].
          mask: bool [B, N, M] or [N, M], the uncommitted rows that each node sees, its own
            included: a lower triangle for a chain, the ancestors for a tree. Training passes
            ``attention.Seen``, which takes less memory.
          cache: the committed past, which every node sees; None in training. An encoder-decoder
            needs one, with the source.
          rows: uncommitted rows of an earlier call. In ``mask`` they come before the nodes' own.
          taps: the layers whose input to return.
          rope_lengths: see ``rope.rotary``.
          row_positions: int32 [B, M], positions of all rows, for a model with attention windows.
          skip: the sub-layers to skip.
          computed: results of the first layers for the same nodes, from an earlier call: the
            residual stream float32 [B, N, E] that enters the next layer, and the nodes' rows of
            each of these layers. These layers do not run, and have no taps.
        """
        # 1. The residual stream that enters the first layer.
        dtype = self.embed[...].dtype if cache is None else cache.dtype
        if self.encoder is not None:  # positions of the text become positions of the decoder
            assert cache is not None
            positions = positions - cache.begin[:, None]
            row_positions = None if row_positions is None else row_positions - cache.begin[:, None]
        x, done = (self.embedded(tokens, positions), ()) if computed is None else computed
        inputs = None
        if self.per_layer is not None:
            inputs = self.per_layer(tokens, x if computed is None else self.embedded(tokens, positions))

        # 2. The nodes as the layers see them.
        length = jnp.zeros(x.shape[0], jnp.int32) if cache is None else cache.held
        at = positions if row_positions is None else row_positions
        bias = None if self.relative is None else self.relative(positions, at)
        source, begin = ((), None) if cache is None or self.encoder is None else (cache.source, cache.begin)
        nodes = Nodes(positions, mask, dtype, length, row_positions, rope_lengths, inputs, bias, source, begin)

        # 3. The layers.
        x, new_rows, tapped = run_layers(self.layers, x, nodes, cache, rows=rows, taps=taps, skip=skip, done=done)
        return Output(self.last_norm(x), new_rows, tapped)

    def embedded(self, tokens: jax.Array, positions: jax.Array) -> jax.Array:
        """The residual stream float32 [B, N, E] of tokens at positions, before the first layer."""
        x = self.token_embeddings(tokens)
        if self.positions is not None:
            at = positions + (self.config.position_offset or 0)
            x = x + lookup(self.positions[...], at).astype(jnp.float32)
        if self.embed_norm is not None:
            x = normalize(x, self.config.norms, self.embed_norm[...], value_of(self.embed_norm_bias))
        return whole_features(x)

    def encode(self, tokens: jax.Array, lengths: jax.Array, dtype) -> tuple:
        """The ``source`` of a cache: each layer's keys and values [B, K, T, D] of encoder outputs.

        Args:
          tokens: int32 [B, T], of which the encoder reads the first ``lengths`` int32 [B].
          dtype: the type of keys and values.
        """
        assert self.encoder is not None
        outputs = self.encoder(self.token_embeddings(tokens), lengths, dtype)
        return tuple(layer.cross.keys_values(outputs, dtype) for layer in self.layers if layer.cross is not None)

    def token_embeddings(self, tokens: jax.Array) -> jax.Array:
        """The embeddings float32 [B, N, E] of tokens int32 [B, N], without their positions."""
        table = self.embed[...]
        x = lookup(table, tokens).astype(jnp.float32)
        if self.config.embedding_scale != 1:
            x = x * jnp.asarray(self.config.embedding_scale, table.dtype).astype(jnp.float32)
        return x if self.project_in is None else linear(x, self.project_in[...])

    def last_norm(self, x: jax.Array) -> jax.Array:
        """The hidden states float32 [..., E] of the stream x [..., E] behind the last layer."""
        if self.norm is None:
            return x
        return normalize(x, self.config.norms, self.norm[...], value_of(self.norm_bias))

    def logits(self, hidden: jax.Array, head: nnx.Param | None = None) -> jax.Array:
        """Logits float32 [..., V] of hidden states [..., E].

        ``head`` [Vd, E]: another output matrix; by default the model's.
        """
        if self.project_out is not None:
            hidden = linear(hidden, self.project_out[...])
        if head is None:
            head = self.embed if self.head is None else self.head
        if self.config.logit_scale != 1:
            hidden = hidden * self.config.logit_scale
        logits = whole_features(linear(hidden, head[...]))
        if self.logit_bias is not None:
            logits = logits + self.logit_bias[...].astype(jnp.float32)
        cap = self.config.logit_softcap
        return logits if cap is None else cap * jnp.tanh(logits / cap)


def run_layers(layers, x, nodes: Nodes, cache: KVCache | None, *, rows=None, taps=(), skip=Skip(), done=()):
    """The residual stream float32 [B, N, E] after the layers, the rows of all layers, and the taps.

    Args:
      x: float32 [B, N, E], the input of the first layer that runs.
      done: the nodes' rows of the first layers, which do not run.

    The other arguments are those of ``Decoder``.
    """
    tapped = {}
    new_rows = list(done)
    before = nodes.length  # known when a round begins, so that the first layer may be copied during drafting
    for i in range(len(done), len(layers)):
        if i in taps:
            tapped[i] = x
        layer = fetch(layers[i], before)
        source = layers[i].config.mixer.source
        past = None if cache is None else cache.layers[i if source is None else source]
        if source is None:
            earlier = None if rows is None else rows[i]
        else:
            earlier = new_rows[source]
        runs = {"mixer": i not in skip.attention, "mlp": i not in skip.mlp}
        before = x  # the next layer is copied while this one runs
        x, layer_rows = layer(x, nodes, past, earlier, i, **runs)
        new_rows.append(layer_rows)
    if len(layers) in taps:
        tapped[len(layers)] = x
    return x, tuple(new_rows), tuple(tapped[i] for i in taps)
