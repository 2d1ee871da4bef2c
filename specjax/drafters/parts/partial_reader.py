"""A small cache with a part of the target's rows.

Methods in which the target drafts with it share it.

The part is the attention sinks and a window (StreamingLLM, Xiao et al. 2023; MagicDec, Chen et al.
2024), and chunks of positions that a query chooses (TriForce, Sun et al. 2024). Keys
are rotated before they are cached, so each row keeps its true position.

A round gathers the part once. The verify pass computes the true rows, so no row of the part
outlives the round.
"""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from ...core.cache import POSITIONS, KVCache, commit
from ...core.checks import whole
from ...core.stored_rows import EightBitRows, full_dtype, read
from ...core.tree import node_count
from ...errors import RequestError
from ...models.base import Output, Sizes
from ...models.config import ModelConfig
from ...models.decoder import Decoder, run_layers
from ...models.layer import Nodes
from ...models.mixers import AttentionConfig
from ...parallel import each_part_of_heads
from .draft_sampling import Drawing

SELF = ((True,),)
"""The mask of one node that sees its own row."""

_AVERAGED = 256
"""Positions whose keys one iteration averages."""


@dataclasses.dataclass(frozen=True)
class PartialReader(Drawing):
    """A method in which the target reads a part of its cache.

    With n committed tokens, a layer sees the first ``attention_sinks`` positions, the last
    ``draft_window``, and ``cache_chunks`` chunks of ``chunk_size`` positions between them. Each key
    head chooses its own chunks: those whose mean key has the highest product with the root's
    queries, summed over the queries of the head. A row with no more tokens than this sees all of
    them, and drafts as the target itself.

    Attributes:
      attention_sinks: positions at the beginning of the text that the draft sees.
      draft_window: newest positions that the draft sees.
      cache_chunks: chunks between them that the draft sees; 0 for none.
      chunk_size: positions of a chunk.
    """

    attention_sinks: int = dataclasses.field(default=4, kw_only=True)
    draft_window: int = dataclasses.field(default=256, kw_only=True)
    cache_chunks: int = dataclasses.field(default=0, kw_only=True)
    chunk_size: int = dataclasses.field(default=16, kw_only=True)
    reads_target = True

    def __post_init__(self):
        for name, least in (("attention_sinks", 0), ("draft_window", 1), ("chunk_size", 1)):
            whole(name, getattr(self, name), least)
        node_count("cache_chunks", self.cache_chunks, 0)
        super().__post_init__()

    def check(self, config: ModelConfig) -> None:
        first = config.layer(0).mixer
        several = any(layer.mixer != first for layer in config.layers)
        if several or not first.row_shapes or any(config.windows) or config.relative is not None:
            raise RequestError(
                "the target has attention windows, biases by distance, recurrent layers or layers of several kinds, "
                "and its draft cannot read a part of the cache; use another method"
            )
        if self.cache_chunks and not isinstance(first, AttentionConfig):
            raise RequestError(
                "the cache of latent attention has no keys of heads by which to choose chunks; use cache_chunks=0"
            )

    @property
    def most(self) -> int:
        """S, the most positions that the draft sees."""
        return self.attention_sinks + self.draft_window + self.cache_chunks * self.chunk_size

    def blank_means(self, config: Sizes, batch: int, capacity: int, dtype) -> KVCache | None:
        """A cache without chunks, for the mean keys of a cache's chunks.

        It is None if none is chosen.

        Its positions are chunks: the key of chunk c is the mean key of the positions from
        ``attention_sinks + c * chunk_size`` on.
        """
        if not self.cache_chunks or self.most >= capacity:
            return None
        shape = (batch, config.num_kv_heads, (capacity - self.attention_sinks) // self.chunk_size, config.head_dim)
        layers = tuple((jnp.zeros(shape, dtype),) for _ in range(config.num_layers))
        return KVCache(layers, jnp.zeros(batch, jnp.int32))

    def average(self, means: KVCache | None, cache: KVCache) -> KVCache | None:
        """The means of all chunks before the window. Only those of new chunks are computed."""
        if means is None:
            return None
        count = jnp.maximum(cache.length - self.attention_sinks - self.draft_window, 0) // self.chunk_size
        chunks = min(-(-_AVERAGED // self.chunk_size), means.capacity)

        def read(means):
            first = jnp.minimum(means.length, means.capacity - chunks)  # the last chunks may be averaged again
            start = (self.attention_sinks + first * self.chunk_size)[:, None, None]
            new = tuple((self._mean(keys, start, chunks),) for keys, _ in cache.layers)
            length = jnp.minimum(first + chunks, count)
            return commit(means.replace(length=first), new, None, length, valid=count > 0)

        return lax.while_loop(lambda means: jnp.any(means.length < count), read, means)

    def read_root(self, target: Decoder, state, means: KVCache | None, room: int) -> tuple[Output, KVCache]:
        """The target's output for the root with a part of the cache, and this part.

        The part has room for ``room`` nodes. Each layer chooses its chunks by the queries with
        which it then reads the part.
        """
        n = state.cache.length
        cache = state.cache
        positions = state.cache.length[:, None]
        x = target.embedded(state.root[:, None], positions)
        held = jnp.minimum(n, self.most)
        nodes = Nodes(positions, jnp.array(SELF), cache.dtype, held)
        parts = []
        rows = []
        for i, layer in enumerate(target.layers):
            chunks = None
            if means is not None:
                queries = layer.mixer.queries(layer.before("mixer", x), nodes)
                queries = _of_key_heads(queries, target.config.kv_copies)
                chunks = self._choose(queries, means.layers[i][0], means.length)
            parts.append(jax.tree.map(partial(self._take, n=n, chunks=chunks, room=room), cache.layers[i]))
            past = KVCache((parts[-1],), n, n - held)
            x, new, _ = run_layers((layer,), x, nodes, past)
            rows += new
        return Output(target.last_norm(x), tuple(rows)), KVCache(tuple(parts), n, n - held)

    def _choose(self, queries: jax.Array, means: jax.Array, count: jax.Array) -> jax.Array:
        """Int32 [B, K, cache_chunks], the chunks with the highest scores.

        Args:
          queries: float32 [B, K, D], see ``_of_key_heads``.
          means: [B, K, M, D], of which ``count`` int32 [B] are valid.
        """
        scores = jnp.einsum("bkd,bkmd->bkm", queries, means.astype(jnp.float32))
        scores = jnp.where(jnp.arange(means.shape[2]) < count[:, None, None], scores, -jnp.inf)
        return lax.top_k(scores, self.cache_chunks)[1]

    def _take(self, leaf: jax.Array, n: jax.Array, chunks: jax.Array | None, room: int) -> jax.Array:
        """The part of an array of the cache [B, K, T, D]: attention sinks | chunks | window | room.

        A row with too few tokens for that holds all its tokens in their order.

        Args:
          n: int32 [B], committed tokens.
          chunks: int32 [B, K, cache_chunks], the chosen chunks; None for none.
        """
        if self.most >= leaf.shape[2]:
            return jnp.pad(leaf, ((0, 0), (0, 0), (0, room), (0, 0)))
        sinks = self.attention_sinks
        size = self.chunk_size
        recent = self.most - self.draft_window
        n = n[:, None, None]
        long = n > self.most
        pieces = [leaf[:, :, :sinks]]
        if chunks is not None:
            first = jnp.where(long, chunks, jnp.arange(self.cache_chunks))
            pieces.append(take_runs(leaf, sinks + first * size, size))
        pieces.append(take_runs(leaf, jnp.where(long, n - self.draft_window, recent), self.draft_window))
        return jnp.pad(jnp.concatenate(pieces, 2), ((0, 0), (0, 0), (0, room), (0, 0)))

    def _mean(self, keys: jax.Array | EightBitRows, start: jax.Array, count: int) -> jax.Array:
        """The means of ``count`` chunks of keys [B, K, T, D] from ``start`` [B, 1, 1] on."""
        runs = jax.tree.map(lambda leaf: take_runs(leaf, start, count * self.chunk_size), keys)
        chunks = read(runs).reshape(*runs.shape[:2], -1, self.chunk_size, runs.shape[3])
        return chunks.mean(3).astype(full_dtype(keys.dtype))


def _of_key_heads(queries: jax.Array, copies: int) -> jax.Array:
    """The sums of each key head's queries, float32 [B, K, D].

    The queries [B, 1, K, G, D] are those of one node.

    ``copies``: see ``ModelConfig.kv_copies``. Copies of a key head stand side by side. They share
    its queries, and get the same sum, so that no mesh changes the choice of chunks.
    """
    B, _, K, _, D = queries.shape
    of_copies = queries.sum((1, 3)).reshape(B, K // copies, copies, D)
    return of_copies.sum(2).repeat(copies, 1)


def add_node(part: KVCache, out: Output) -> KVCache:
    """The part with the rows of one node, after the forward that returned ``out``."""
    finite = jnp.isfinite(out.hidden).all((1, 2))
    return commit(part, out.rows, None, part.length + 1, valid=finite)


def take_runs(leaf: jax.Array, starts: jax.Array, size: int) -> jax.Array:
    """Runs of ``size`` positions, [B, K, N * size, D], from an array [B, K, T, D] of a cache.

    Args:
      starts: int32 [B, K or 1, N], the first position of each run; with 1 all key heads have the
        same runs. A run must not reach beyond T.
    """
    in_parts = partial(each_part_of_heads, partial(_take_run_by_run, size=size))
    return lax.platform_dependent(leaf, starts, tpu=in_parts, default=partial(_take_at_once, size=size))


def _take_at_once(leaf: jax.Array, starts: jax.Array, *, size: int) -> jax.Array:
    places = (starts[..., None] + jnp.arange(size)).reshape(*starts.shape[:2], -1)
    return jnp.take_along_axis(leaf, places[..., None], POSITIONS, mode="clip")


def _take_run_by_run(leaf: jax.Array, starts: jax.Array, *, size: int) -> jax.Array:
    """Reads one slice for each run, in a loop. XLA:TPU copies the cache for a gather."""
    B, K, _, D = leaf.shape
    _, heads, N = starts.shape

    def take(run):
        b = run // (heads * N)
        head = run // N % heads
        start = starts[b, head, run % N]
        return lax.dynamic_slice(leaf, (b, head, start, 0), (1, K // heads, size, D))[0]

    runs = lax.map(take, jnp.arange(B * heads * N)).reshape(B, heads, N, K // heads, size, D)
    return jnp.moveaxis(runs, 3, 2).reshape(B, K, N * size, D)
