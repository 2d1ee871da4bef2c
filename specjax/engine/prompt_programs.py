"""The compiled programs that read the prompts of an engine, in chunks."""

import threading
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import numpy as np

from ..core.state import Requests
from ..loop.prefill import Filled
from ..text.session import Session, cache_dtype
from . import prefix_blocks, slots
from .compiled_calls import CompiledCalls
from .prefix_blocks import BLOCK, Block

Program = tuple[str, int]
"""A program that is compiled ahead, such as ("rounds", 4).

"rounds", "plain" and "grammar" have a width, "chunk" has a size.
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

    Attributes:
      ready: the programs that may run, of those that are compiled ahead; None for all.
    """

    def __init__(self, session: Session, blank: Requests, chunk: int):
        super().__init__(session)
        self.chunk = chunk
        self.capacity = blank.tokens.shape[1]
        self.ready: set[Program] | None = None
        self._blank = blank
        self._dtype = cache_dtype(session.target)
        self._taps = session.drafter.taps
        self._compiling = threading.Lock()
        self._filled_layout = self._choose_filled_layout(blank)
        self._begin_draft = partial(slots.begin_reading_draft, drafter=session.drafter, dtype=self._dtype)
        filled = self.begin_reading()
        self._draft_reads = jax.eval_shape(self._begin_draft, *self._models, blank, filled) is not None

    @property
    def _row_sizes(self) -> dict[str, Any]:
        return dict(capacity=self.capacity, dtype=self._dtype, taps=self._taps)

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
        return self._call(partial(slots.begin_reading, **self._row_sizes), (), self._modules[:1], **options)

    def read(self, request: Requests, filled: Filled, start: int, size: int) -> Filled:
        """Reads the chunk of ``size`` tokens of the prompt from place ``start`` on."""
        function = partial(slots.read_chunk, chunk=size, taps=self._taps)
        return self._call(function, (request, filled, np.int32(start)), self._modules[:1], (size,), donate_argnums=2)

    def chunk_for(self, unread: int, most: int, start: int = 0) -> int:
        """The smallest power of two that suffices for ``unread`` tokens from place ``start`` on.

        It is at most ``most``, and the chunk does not reach beyond the capacity. Its program is
        ready, or it is ``LEAST_CHUNK``.
        """
        size = min(1 << (max(unread, LEAST_CHUNK) - 1).bit_length(), most)
        while start + size > self.capacity or size > LEAST_CHUNK and not self._is_ready("chunk", size):
            size //= 2
        return size

    def begin_reading_draft(self, request: Requests, filled: Filled) -> Filled | None:
        """One row before the draft's first chunk of its prompt.

        It is None for a method that reads none in chunks.
        """
        return self._call(self._begin_draft, (request, filled), self._modules) if self._draft_reads else None

    def read_draft(self, request: Requests, filled: Filled, drafted: Filled, start: int, size: int) -> Filled:
        """The draft reads the chunk of ``size`` tokens from place ``start`` on.

        The target's row is ``filled``.
        """
        function = partial(slots.read_draft_chunk, drafter=self.session.drafter, chunk=size)
        args = request, filled.taps, drafted, np.int32(start)
        return self._call(function, args, self._modules, (size,), donate_argnums=4)

    def take_blocks(self, filled: Filled, start: int, size: int) -> tuple[Block, ...]:
        """The blocks of ``size`` tokens from place ``start`` on."""
        count = size // BLOCK
        return self._call(partial(prefix_blocks.take_blocks, count=count), (filled, np.int32(start)), key=(count,))

    def put_blocks(self, filled: Filled, blocks: Sequence[Block]) -> Filled:
        """The row ``filled``, which has read nothing, with the blocks of its beginning."""
        done = 0
        while done < len(blocks):
            count = _TOGETHER if len(blocks) - done >= _TOGETHER else 1
            args = filled, tuple(blocks[done : done + count]), np.int32(done * BLOCK)
            filled = self._call(partial(prefix_blocks.put_blocks), args, donate_argnums=0)
            done += count
        return filled

    def compile_chunk(self, size: int) -> None:
        """Compiles the programs that read chunks of this size, if they are not.

        Any thread may call this.
        """
        filled = self.begin_reading()
        drafted = self.begin_reading_draft(self._blank, filled)
        args = self._blank, filled, np.int32(0)
        function = partial(slots.read_chunk, chunk=size, taps=self._taps)
        self._compile_ahead(function, args, (size,), dict(donate_argnums=2), self._modules[:1])
        if drafted is not None:
            function = partial(slots.read_draft_chunk, drafter=self.session.drafter, chunk=size)
            args = self._blank, filled.taps, drafted, np.int32(0)
            self._compile_ahead(function, args, (size,), dict(donate_argnums=4))

    def _is_ready(self, kind: str, size: int) -> bool:
        return self.ready is None or (kind, size) in self.ready

    def _compile_ahead(self, function: partial, args: tuple, key: tuple, options: dict, modules=None) -> None:
        """Compiles a program for arguments of these shapes, whose arrays others may donate."""

        def shape(x):
            return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=getattr(x, "sharding", None))

        args = jax.tree.map(lambda x: shape(self._on_devices(x)), args)
        with self._compiling:
            self._compile(function, args, self._modules if modules is None else modules, key, options)
