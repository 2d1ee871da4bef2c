"""The compiled programs that read the prompts of an engine, in chunks."""

import threading
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import numpy as np

from ..core.state import Requests
from ..loop.prefill import Filled
from ..text.cache_dtype import cache_dtype
from ..text.session import Session
from . import prefix_blocks, slots
from .compiled_calls import CompiledCalls
from .pools import block_shapes, on_pools
from .prefix_blocks import BLOCK, Block

Program = tuple[str, int]
"""A program that is compiled ahead, such as ("rounds", 4).

"rounds", "plain" and "grammar" have a width, "chunk" has a size, "wait" the number of slots, and
"beginnings" the largest chunk.
"""

LEAST_CHUNK = BLOCK
"""The fewest tokens of a prompt that one forward reads. Programs for fewer cost as much time."""

_TOGETHER = 8
"""Blocks that one program writes. Another program writes one block."""


class PromptPrograms(CompiledCalls):
    """The base of ``Programs``: target and draft read a prompt into a row that has no slot yet.

    There is a program for each size of a chunk, a power of two.

    Args:
      blank: the request of an empty slot, of one token, which has ended.
      chunk: the most tokens of a prompt that one forward reads.
      block: the positions of a block; None for rows with keys and values of their own.

    Attributes:
      ready: the programs that may run, of those that are compiled ahead; None for all.
      block_shapes: the arrays of a block of the target and of the draft, see ``pools``.
      reading_table: int32 [1, T / S], the blocks of the row that is read.
    """

    def __init__(self, session: Session, blank: Requests, chunk: int, block: int | None):
        super().__init__(session)
        self.chunk = chunk
        self.capacity = blank.tokens.shape[1]
        self.reading_table = np.zeros((1, self.capacity // block if block else 0), np.int32)
        self._in_blocks = block is not None
        self._target_pools: list = []
        self._draft_pools: list = []
        self.ready: set[Program] | None = None
        self._void_costs = jax.default_backend() == "cpu"
        self._blank = blank
        self._dtype = cache_dtype(session.target)
        self._taps = session.drafter.taps
        self._compiling = threading.Lock()
        self._filled_layout = self._choose_filled_layout(blank)
        reading: dict[str, Any] = dict(drafter=session.drafter, dtype=self._dtype)
        self._begin_draft = partial(slots.begin_reading_draft, in_blocks=self._in_blocks, **reading)
        filled = jax.eval_shape(partial(slots.begin_reading, **self._row_sizes), *self._models[:1])
        drafted = jax.eval_shape(partial(slots.begin_reading_draft, **reading), *self._models, blank, filled)
        self.draft_reads = drafted is not None
        self.block_shapes = [block_shapes(row, block) if block else [] for row in (filled, drafted)]

    @property
    def _row_sizes(self) -> dict[str, Any]:
        return dict(capacity=self.capacity, dtype=self._dtype, taps=self._taps)

    def _lend(
        self,
        function: partial,
        args: tuple,
        modules: tuple,
        pools,
        table,
        *,
        donated: tuple,
        key: tuple = (),
        **options,
    ) -> dict[str, Any]:
        """The arguments of ``_call`` for a program that gets pools, which it donates.

        ``donated``: the places of operands that it donates too. The last of them has ``Blocks``.
        """
        lent = partial(on_pools, function=function, at=donated[-1])
        donated = (*donated, len(modules) + len(args))
        call = dict(function=lent, args=(*args, pools, table), modules=modules, donate_argnums=donated)
        return call | dict(key=(function.func.__name__, *key)) | options

    def _choose_filled_layout(self, request: Requests) -> Filled | None:
        """The shardings in which the program of a first chunk makes a row; None without a mesh."""
        if self.session.mesh is None:
            return None
        function = partial(slots.read_first_chunk, chunk=LEAST_CHUNK, **self._row_sizes)
        compiled, _ = self._compile(function, (request,), self._modules[:1], (), {})
        return compiled.output_shardings

    def begin_reading(self) -> Filled:
        """One row before the first chunk of its prompt."""
        options: dict[str, Any] = dict(out_shardings=self._filled_layout)
        function = partial(slots.begin_reading, in_blocks=self._in_blocks, **self._row_sizes)
        return self._call(function, (), self._modules[:1], **options)

    def read(self, request: Requests, filled: Filled, start: int, size: int) -> Filled:
        """Reads the chunk of ``size`` tokens of the prompt from place ``start`` on."""
        filled, self._target_pools = self._call(**self._reading(request, filled, start, size))
        return filled

    def _reading(self, request: Requests, filled: Filled, start: int, size: int) -> dict[str, Any]:
        function = partial(slots.read_chunk, chunk=size, taps=self._taps)
        args = request, filled, np.int32(start)
        lent = self._target_pools, self.reading_table
        return self._lend(function, args, self._modules[:1], *lent, donated=(2,), key=(size,))

    def chunk_for(self, unread: int, most: int, start: int = 0) -> int:
        """The size of the next chunk of ``unread`` tokens from place ``start`` on, a power of two.

        It is the smallest that suffices, but at most ``most``, and the chunk does not reach beyond
        the capacity. Its program is ready, or it is ``LEAST_CHUNK``. On a CPU, where void tokens
        take time too, half of it is next if a quarter more would suffice.
        """
        size = min(1 << (max(unread, LEAST_CHUNK) - 1).bit_length(), most)
        if self._void_costs and size >= 4 * LEAST_CHUNK and unread <= size // 4 * 3:
            size //= 2
        while start + size > self.capacity or size > LEAST_CHUNK and not self._is_ready("chunk", size):
            size //= 2
        return size

    def begin_reading_draft(self, request: Requests, filled: Filled) -> Filled | None:
        """One row before the draft's first chunk of its prompt.

        It is None for a method that reads none in chunks.
        """
        return self._call(self._begin_draft, (request, filled), self._modules) if self.draft_reads else None

    def read_draft(self, request: Requests, filled: Filled, drafted: Filled, start: int, size: int) -> Filled:
        """The draft reads the chunk of ``size`` tokens from place ``start`` on.

        The target's row is ``filled``.
        """
        drafted, self._draft_pools = self._call(**self._reading_draft(request, filled, drafted, start, size))
        return drafted

    def _reading_draft(self, request: Requests, filled: Filled, drafted: Filled, start: int, size: int) -> dict:
        function = partial(slots.read_draft_chunk, drafter=self.session.drafter, chunk=size)
        args = request, filled.taps, drafted, np.int32(start)
        lent = self._draft_pools, self.reading_table
        return self._lend(function, args, self._modules, *lent, donated=(4,), key=(size,))

    def take_blocks(self, filled: Filled, start: int, size: int) -> tuple[Block, ...]:
        """The blocks of ``size`` tokens from place ``start`` on."""
        return self._call(**self._taking(filled, start, size))

    def _taking(self, filled: Filled, start: int, size: int) -> dict[str, Any]:
        count = size // BLOCK
        function = partial(prefix_blocks.take_blocks, count=count)
        return dict(function=function, args=(filled, np.int32(start)), key=(count,))

    def put_blocks(self, filled: Filled, blocks: Sequence[Block]) -> Filled:
        """The row ``filled``, which has read nothing, with the blocks of its beginning."""
        done = 0
        while done < len(blocks):
            count = _TOGETHER if len(blocks) - done >= _TOGETHER else 1
            filled = self._call(**self._putting(filled, blocks[done : done + count], done * BLOCK))
            done += count
        return filled

    def _putting(self, filled: Filled, blocks: Sequence[Block], start: int) -> dict[str, Any]:
        args = filled, tuple(blocks), np.int32(start)
        return dict(function=partial(prefix_blocks.put_blocks), args=args, donate_argnums=0)

    def compile_beginnings(self, sizes: Sequence[int]) -> None:
        """Compiles what copies beginnings of prompts that are read in chunks of these sizes.

        Any thread may call this.
        """
        filled = self.begin_reading()
        for size in sizes:
            self._compile_ahead(**self._taking(filled, 0, size))
        blocks = jax.eval_shape(partial(prefix_blocks.take_blocks, count=1), filled, 0)
        for count in (1, _TOGETHER):
            self._compile_ahead(**self._putting(filled, blocks * count, 0))

    def compile_chunk(self, size: int) -> None:
        """Compiles the programs that read chunks of this size, if they are not.

        Any thread may call this.
        """
        filled = self.begin_reading()
        drafted = self.begin_reading_draft(self._blank, filled)
        self._compile_ahead(**self._reading(self._blank, filled, 0, size))
        if drafted is not None:
            self._compile_ahead(**self._reading_draft(self._blank, filled, drafted, 0, size))

    def _is_ready(self, kind: str, size: int) -> bool:
        return self.ready is None or (kind, size) in self.ready

    def _compile_ahead(self, function: partial, args: tuple, modules: tuple = (), key: tuple = (), **options) -> None:
        """Compiles a program for arguments of these shapes, whose arrays others may donate."""

        def shape(x):
            return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=getattr(x, "sharding", None))

        args = jax.tree.map(shape, self._on_devices(args))
        with self._compiling:
            self._compile(function, args, modules, key, options)
