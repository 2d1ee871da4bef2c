"""Reads prompts into blocks, behind the blocks that another row has read."""

import jax

from ..errors import RequestError
from ..text.session import Session
from .block_memory import BlockMemory
from .memory import count_blocks
from .options import EngineOptions
from .prefix_cache import PrefixCache, longest_shared_prompt
from .programs import Programs
from .prompt_reader import Reader, Row
from .request import with_text
from .scheduler import RowMemory
from .step_size import StepSize


class BlockReader(Reader):
    """A ``Reader`` of rows whose keys and values are in blocks.

    A row that had to wait is read with all of its text, and then goes on where it was.

    Args:
      memory: gives the rows that are read their blocks.
      others: the arguments of ``Reader``.
    """

    def __init__(self, memory: BlockMemory, *others):
        super().__init__(*others)
        self._memory = memory

    def _begin(self, row: Row) -> None:
        programs = self._programs
        if row.saved is None:
            row.handle.cached_tokens = row.start
        else:
            row.arrays = with_text(row.arrays, row.text)
        row.filled = programs.begin_reading()
        row.drafted = programs.begin_reading_draft(row.arrays, row.filled)
        row.draft_start = row.length - 1 if row.drafted is None else row.start

    def _admit(self, row: Row) -> None:
        finite = [filled.finite for filled in (row.filled, row.drafted) if filled is not None]
        self._memory.place(row, may_share=all(bool(each.all()) for each in jax.device_get(finite)))
        if row.saved is None:
            super()._admit(row)
        else:
            self._programs.resume(row.saved, row.slot)
            row.saved = None


def check_blocks(session: Session) -> None:
    """Raises RequestError where keys and values cannot be in blocks."""
    if session.mesh is not None:
        raise RequestError("an engine on a mesh has fixed slots; leave out blocks and memory")
    if session.drafter.reads_target:
        name = type(session.drafter).__name__
        raise RequestError(f"{name} reads the target's keys itself, and finds them in fixed slots; leave out blocks")


def make_memory(
    programs: Programs, prefixes: PrefixCache, pace: StepSize, options: EngineOptions
) -> tuple[RowMemory, Reader]:
    """The memory of an engine's rows, and what reads prompts into it.

    Raises RequestError for too few blocks, and for more than the device has room for.
    """
    if programs.block is None:
        return RowMemory(), Reader(programs, prefixes, pace)
    size, session = programs.block, programs.session
    longest = min(programs.capacity, session.target.config.context + session.drafter.depth + 1)
    least = -(-longest // size)
    programs.make_pools(count_blocks(options.blocks, options.memory, least, size, programs.block_bytes))
    shared = longest_shared_prompt(session.target.config)
    memory = BlockMemory(programs, size, options.prefix_bytes != 0, shared)
    return memory, BlockReader(memory, programs, prefixes, pace)
