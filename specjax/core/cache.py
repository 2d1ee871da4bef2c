"""The key/value cache, the rows that are not yet in it, and the only functions that write it.

Rows of the batch are left-aligned, and each has a length of its own. A forward reads the cache and
never writes it. It returns the keys and values of the nodes that it scored. After acceptance,
``commit`` writes the keys and values of the accepted path into the cache of each layer. Positions
from ``length`` on are void: attention masks them, and later writes overwrite them.

Keys and values may have eight bits, see ``stored_rows``, and lie in blocks, see ``blocks``.

A layer that reads tokens one after another has a state instead, see ``recurrence``. ``commit``
advances the state along the accepted path.
"""

from functools import partial

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax

from ..errors import RequestError
from ..kernels.gpu import cache_write
from ..parallel import each_part_of_rows, split_rows
from .blocks import Blocks, is_blocks, map_arrays, pools_and_tables, with_tables_of, without_writes
from .recurrence import State
from .stored_rows import EightBitRows, EightBits, HalfRows, Halves, blank

POSITIONS = 2
"""The axis of positions in every array of keys or values, [B, K, positions, D]."""


class KVCache(struct.PyTreeNode):
    """Keys and values of the committed tokens.

    Attributes:
      layers: for each layer its arrays [B, K, T, D], or what stands in their place, in attention a
        pair, or its ``recurrence.State``. A layer that reads the arrays of another layer has none.
      length: int32 [B], committed tokens of each row.
      omitted: int32 [B], committed tokens whose keys and values the cache does not hold; None for
        none. Later tokens still follow the rows that it holds.
      source: for each layer of an encoder-decoder the keys and values [B, K, T, D] of the encoder's
        outputs; () for other models. They belong to the first ``omitted`` tokens of the text, and
        no commit changes them.
    """

    layers: tuple
    length: jax.Array
    omitted: jax.Array | None = None
    source: tuple = ()

    @property
    def held(self) -> jax.Array:
        """Int32 [B], the committed tokens whose keys and values the cache holds."""
        return self.length if self.omitted is None else self.length - self.omitted

    @property
    def begin(self) -> jax.Array:
        """Int32 [B], the number of tokens that an encoder reads before the model's own text."""
        return self.omitted if self.source and self.omitted is not None else jnp.zeros_like(self.length)

    @property
    def capacity(self) -> int:
        """T, the number of positions that the cache has room for."""
        assert self._first is not None  # states have no positions
        return self._first.shape[POSITIONS]

    @property
    def dtype(self):
        """The dtype of keys and values, ``EightBits`` or ``Halves``.

        It is float32 for a cache of states alone.
        """
        return jnp.dtype(jnp.float32) if self._first is None else self._first.dtype

    @property
    def _first(self) -> jax.Array | EightBitRows | HalfRows | Blocks | None:
        """The first array [B, K, T, D]; None in a cache of states alone."""
        return next((layer[0] for layer in self.layers if layer and not isinstance(layer, State)), None)

    def cut(self, length: jax.Array) -> "KVCache":
        """The cache of the first ``length`` int32 [B] tokens, at most those that it has.

        Raises RequestError for a model with recurrent states, which hold no earlier state.
        """
        if any(isinstance(layer, State) for layer in self.layers):
            raise RequestError(
                "a draft with recurrent layers cannot take back tokens that it has committed, as this method asks; "
                "use a draft with attention alone, or draft_model"
            )
        return self.replace(length=length)

    def blank_rows(self, nodes: int, skip: tuple[int, ...] = ()) -> "Rows":
        """Rows of zeros for ``nodes`` nodes in each layer, and None for the layers in ``skip``."""

        def zeros(leaf):
            return jnp.zeros((*leaf.shape[:2], nodes, leaf.shape[3]), leaf.dtype)

        def blank(layer):
            return layer.blank_rows(nodes) if isinstance(layer, State) else map_arrays(zeros, layer)

        return Rows(tuple(None if i in skip else blank(layer) for i, layer in enumerate(self.layers)))


class Rows(struct.PyTreeNode):
    """Uncommitted keys and values of M nodes.

    Attributes:
      layers: for each layer its arrays [B, K, M, D], as in ``KVCache``, or the rows of its state;
        None for a layer whose attention was skipped.
    """

    layers: tuple

    def room(self, nodes: int) -> "Rows":
        """These rows, followed by rows of zeros for ``nodes`` more nodes."""
        return jax.tree.map(lambda leaf: jnp.pad(leaf, ((0, 0), (0, 0), (0, nodes), (0, 0))), self)

    def put(self, layers: tuple, count: int, at) -> "Rows":
        """These rows, overwritten from place ``at`` on by the last ``count`` rows of ``layers``.

        ``layers`` are the ``rows`` of an ``Output``.
        """

        def overwrite(old, new):
            return lax.dynamic_update_slice_in_dim(old, new[:, :, -count:], at, POSITIONS)

        return Rows(jax.tree.map(overwrite, self.layers, layers))

    def first(self, count: int) -> "Rows":
        """The first ``count`` rows."""
        return jax.tree.map(lambda leaf: leaf[:, :, :count], self)

    def last(self, count: int) -> "Rows":
        """The last ``count`` rows."""
        return jax.tree.map(lambda leaf: leaf[:, :, -count:], self)

    def join(self, others: "Rows") -> "Rows":
        """These rows, followed by the ``others``."""
        return jax.tree.map(lambda own, new: jnp.concatenate([own, new], POSITIONS), self, others)

    def gather(self, nodes: jax.Array) -> "Rows":
        """The rows of ``nodes`` int32 [B, P], in this order."""
        return jax.tree.map(lambda leaf: jnp.take_along_axis(leaf, nodes[:, None, :, None], axis=POSITIONS), self)


def empty(config, batch: int, capacity: int, dtype) -> KVCache:
    """A cache without tokens.

    Args:
      config: the model's configuration. Its ``empty_layers`` makes the arrays and states; without
        it, ``num_layers``, ``num_kv_heads`` and ``head_dim`` give the shapes of arrays.
      dtype: a dtype, ``EightBits`` or ``Halves``.
      capacity: positions of each row. Leave room for one path beyond the last token. Without that
        room ``dynamic_update_slice`` moves the write back and overwrites the newest tokens.
    """
    if hasattr(config, "empty_layers"):
        layers = config.empty_layers(batch, capacity, dtype)
    else:
        pair = (blank((batch, config.num_kv_heads, capacity, config.head_dim), dtype),) * 2
        layers = (pair,) * config.num_layers
    return split_rows(KVCache(layers, jnp.zeros(batch, jnp.int32)), batch)


def commit(cache: KVCache, rows: tuple, path: jax.Array | None, length: jax.Array, *, valid: jax.Array) -> KVCache:
    """Writes the keys and values of a path after the committed ones, and sets the new length.

    The write must depend on the forward that read the cache. Otherwise XLA:CPU copies every cache
    in every round. ``valid`` carries this dependence, so it has no default. In rows of the batch
    where ``valid`` is false, the write lands at position 0 and the content of the cache is void. In
    blocks it lands in block 0.

    A recurrent state advances by the first ``length - cache.held`` nodes of the path, by none in
    rows where ``length`` is smaller.

    Args:
      rows: for each layer its rows of N nodes, as a forward returns them.
      path: int32 [B, P], the nodes to keep, in order. None keeps all N nodes in their order (a
        chain). Nodes beyond the accepted part are written too; they lie beyond ``length``.
      length: int32 [B], the new lengths. ``cache.held + P`` must not exceed the capacity.
      valid: bool [B], computed from the output of the forward that returned ``rows``.
    """
    start = jnp.where(valid, cache.held, 0)
    states = {i: state for i, state in enumerate(cache.layers) if isinstance(state, State)}

    def arrays(layers):
        return tuple(() if i in states else layer for i, layer in enumerate(layers))

    # 1. The keys and values, by the way that is fastest on the device.
    in_blocks = any(map(is_blocks, jax.tree.leaves(cache.layers, is_leaf=is_blocks)))
    targets = arrays(cache.layers)
    by_slices = partial(_write_path, write=_write_row_by_row)
    at_once = partial(_write_path, write=_write_at_once)
    in_kernel = cache_write.are_usable() and not isinstance(cache.dtype, EightBits | Halves)
    cuda = (_write_blocks_in_kernel if in_blocks else cache_write.write_path) if in_kernel else at_once
    layers = lax.platform_dependent(
        *(without_writes(targets, valid), arrays(rows), path, start), cuda=cuda, rocm=at_once, default=by_slices
    )
    layers = with_tables_of(layers, targets)

    # 2. The recurrent states.
    def advance(state, nodes):
        on_path = nodes if path is None else Rows(nodes).gather(path).layers
        return state.commit(on_path, jnp.where(valid, length - cache.held, 0))

    layers = tuple(advance(states[i], rows[i]) if i in states else layer for i, layer in enumerate(layers))
    return cache.replace(layers=layers, length=length)


def _write_blocks_in_kernel(layers: tuple, rows: tuple, path: jax.Array | None, start: jax.Array) -> tuple:
    pools, (table, *_) = pools_and_tables(layers)
    written = cache_write.write_path(pools, rows, path, start, table)
    return map_arrays(lambda blocks, pool: blocks.replace(pool=pool), layers, written)


def _write_path(layers: tuple, rows: tuple, path: jax.Array | None, start: jax.Array, *, write) -> tuple:
    on_path = Rows(rows) if path is None else Rows(rows).gather(path)
    return each_part_of_rows(write, layers, on_path.layers, start)


def _write_row_by_row(layers: tuple, rows: tuple, start: jax.Array) -> tuple:
    """Writes one slice of each leaf for each row of the batch, in one loop over the rows.

    A vectorised write would become a scatter. XLA:TPU and XLA:CPU copy the cache for a scatter. A
    loop for each leaf would take longer on a CPU, where an iteration costs as much as the write of
    a row.
    """

    def write_row(b, layers):
        def write(leaf, rows):
            # Without the barrier, libtpu 0.0.42.1's compiler fuses this slice into the write and
            # fails.
            new = lax.optimization_barrier(lax.dynamic_slice_in_dim(rows, b, 1).astype(leaf.dtype))
            if is_blocks(leaf):
                return leaf.write_row(b, new, start[b])
            return lax.dynamic_update_slice(leaf, new, (b, 0, start[b], 0))

        return map_arrays(write, layers, rows)

    return write_row(0, layers) if start.size == 1 else lax.fori_loop(0, start.size, write_row, layers)


def _write_at_once(layers: tuple, rows: tuple, start: jax.Array) -> tuple:
    """Writes all rows of the batch in one scatter for each leaf.

    On a GPU a loop would launch several kernels for each row, and XLA:GPU scatters in place.
    """

    def write_row(leaf, rows, start):
        return lax.dynamic_update_slice_in_dim(leaf, rows.astype(leaf.dtype), start, POSITIONS - 1)

    def write(leaf, rows):
        if is_blocks(leaf):
            return leaf.write_all(rows, start)
        if start.size == 1:  # One slice takes a smaller kernel than a scatter.
            return write_row(leaf[0], rows[0], start[0])[None]
        return jax.vmap(write_row)(leaf, rows, start)

    return map_arrays(write, layers, rows)


def without_keys(state):
    """A state, any pytree, without the keys, the values and the recurrent states of its caches."""
    return jax.tree.map(lambda x: x.replace(layers=(), source=()) if is_cache(x) else x, state, is_leaf=is_cache)


def is_cache(x) -> bool:
    """Whether a node of a state is a cache."""
    return isinstance(x, KVCache)
