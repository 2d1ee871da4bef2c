"""The compiled programs that read the prompts of an engine, in chunks."""

import threading
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

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

"rounds", "plain" and "grammar" have a width, "chunk" has a size, "prompts" the number of prompts
that are read together, "wait" the number of slots, and "beginnings" the largest chunk.
"""

LEAST_CHUNK = BLOCK
"""The fewest tokens of a prompt that one forward reads. Programs for fewer cost as much time."""

_TOGETHER = 8
"""Blocks that one program writes. Another program writes one block."""


class Part(NamedTuple):
    """A prompt of those that one program reads.

    Attributes:
      request: the prompt.
      filled, drafted: its row, and that of the draft, or None.
      start: the first place of its chunk.
      blocks: the numbers of the row's blocks.
    """

    request: Requests
    filled: Filled
    drafted: Filled | None
    start: int = 0
    blocks: Sequence[int] = ()


class PromptPrograms(CompiledCalls):
    """The base of ``Programs``: target and draft read a prompt into a row that has no slot yet.

    There is a program for each size of a chunk and each number of prompts, powers of two.

    Args:
      blank: the request of an empty slot, of one token, which has ended.
      chunk: the most tokens of a prompt that one forward reads.
      block: the positions of a block; None for rows with keys and values of their own.
      prompts: the most prompts that one forward reads, a power of two; 1 without blocks.

    Attributes:
      together: the numbers of prompts that one forward reads, in order.
      ready: the programs that may run, of those that are compiled ahead; None for all.
      block_shapes: the arrays of a block of the target and of the draft, see ``pools``.
    """

    def __init__(self, session: Session, blank: Requests, chunk: int, block: int | None, prompts: int):
        super().__init__(session)
        self.chunk = chunk
        self.capacity = blank.tokens.shape[1]
        self.together = tuple(1 << i for i in range(prompts.bit_length()))
        self._places = self.capacity // block if block else 0
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

    def table_of(self, blocks: Sequence[Sequence[int]]) -> np.ndarray:
        """Int32 [P, T / S], a table of P rows with these numbers of blocks."""
        table = np.zeros((len(blocks), self._places), np.int32)
        for row, numbers in zip(table, blocks):
            row[: len(numbers)] = numbers
        return table

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

    def read(self, parts: Sequence[Part], size: int) -> Sequence[Filled]:
        """The rows of ``parts`` after ``size`` more tokens of each."""
        rows, self._target_pools = self._call(**self._reading(parts, size))
        return rows

    def _reading(self, parts: Sequence[Part], size: int) -> dict[str, Any]:
        function = partial(slots.read_chunk, chunk=size, taps=self._taps)
        requests, rows, _, starts, blocks = zip(*parts)
        args = requests, rows, np.array(starts, np.int32)
        lent = self._target_pools, self.table_of(blocks)
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

    def count_together(self, unread: Sequence[int], most: int) -> int:
        """How many prompts the next program reads, the first of those with ``unread`` tokens left.

        They share ``most`` tokens of a program. The smallest number is taken with which a prompt is
        read after the fewest programs on average.
        """

        def waits(count: int) -> int:
            """The sum of the numbers of programs after which each prompt is read."""
            before = total = 0
            for i in range(0, len(unread), count):
                needs = [-(-left // (most // count)) for left in unread[i : i + count]]
                total += sum(needs) + before * len(needs)
                before += max(needs)
            return total

        fits = lambda count: count <= len(unread) and count * LEAST_CHUNK <= most and self._is_ready("prompts", count)
        return min((1, *filter(fits, self.together[1:])), key=waits)

    def begin_reading_draft(self, request: Requests, filled: Filled) -> Filled | None:
        """One row before the draft's first chunk of its prompt.

        It is None for a method that reads none in chunks.
        """
        return self._call(self._begin_draft, (request, filled), self._modules) if self.draft_reads else None

    def read_draft(self, parts: Sequence[Part], size: int) -> Sequence[Filled]:
        """The draft's rows of ``parts`` after ``size`` more tokens of each."""
        rows, self._draft_pools = self._call(**self._reading_draft(parts, size))
        return rows

    def _reading_draft(self, parts: Sequence[Part], size: int) -> dict[str, Any]:
        function = partial(slots.read_draft_chunk, drafter=self.session.drafter, chunk=size)
        requests, rows, drafted, starts, blocks = zip(*parts)
        args = requests, tuple(row.taps for row in rows), drafted, np.array(starts, np.int32)
        lent = self._draft_pools, self.table_of(blocks)
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

    def compile_chunk(self, size: int, prompts: int = 1) -> None:
        """Compiles the programs that read chunks of this size of some prompts, if they are not.

        Any thread may call this.
        """
        filled = self.begin_reading()
        parts = [Part(self._blank, filled, self.begin_reading_draft(self._blank, filled))] * prompts
        self._compile_ahead(**self._reading(parts, size))
        if self.draft_reads:
            self._compile_ahead(**self._reading_draft(parts, size))

    def compile_together(self, prompts: int) -> None:
        """Compiles the programs that read so many prompts, if they are not.

        Any thread may call this.
        """
        size = LEAST_CHUNK
        while size * prompts <= self.chunk:
            self.compile_chunk(size, prompts)
            size *= 2

    def _is_ready(self, kind: str, size: int) -> bool:
        return self.ready is None or (kind, size) in self.ready

    def _compile_ahead(self, function: partial, args: tuple, modules: tuple = (), key: tuple = (), **options) -> None:
        """Compiles a program for arguments of these shapes, whose arrays others may donate."""

        def shape(x):
            return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=getattr(x, "sharding", None))

        args = jax.tree.map(shape, self._on_devices(args))
        with self._compiling:
            self._compile(function, args, modules, key, options)
