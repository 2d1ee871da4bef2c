"""The blocks that each row of an engine has, and the row that waits when they are few."""

from collections.abc import Sequence

from ..loop.jump_forward import MOST_FORCED
from .block_pool import BlockPool
from .pools import held_in_blocks
from .prefix_cache import chain_keys
from .programs import Programs
from .prompt_reader import Row
from .scheduler import RowMemory, Scheduler


class BlockMemory(RowMemory):
    """Gives rows blocks of the pools, for prompts that begin alike the same ones.

    A draft writes the newest tokens of a row again, and may read some tokens behind a key's
    position. So a shared block is followed by ``_ahead`` tokens that all its users have.

    Args:
      programs: has the pools and the tables.
      size: the positions of a block.
      share: whether prompts share blocks.
      longest: the longest text whose blocks are of use to others; None for any length.
    """

    def __init__(self, programs: Programs, size: int, share: bool, longest: int | None):
        self.pool = BlockPool(programs.blocks)
        self._programs = programs
        self._size = size
        drafter = programs.session.drafter
        self._step = max(drafter.depth, MOST_FORCED) + 1
        self._ahead = 2 * drafter.depth + 1 if programs.draft_reads else 0
        # A draft that reads all features at once and a recurrent layer begin with the first token.
        whole = bool(drafter.taps) and not programs.draft_reads or programs.has_states
        self._longest = 0 if whole or not share else longest

    @property
    def usage(self) -> float:
        return self.pool.used / self.pool.count

    def begin(self, row: Row) -> bool:
        shared = self.pool.share([] if row.is_scored else self._keys(row.text, row.held))
        others = self.pool.take(self._count(row.length) - len(shared))
        if others is None:
            self.pool.release(shared)
            return False
        row.blocks = shared + others
        row.start = len(shared) * self._size
        self._programs.reading_table[0] = 0
        self._programs.reading_table[0, : len(row.blocks)] = row.blocks
        return True

    def place(self, row: Row, may_share: bool) -> None:
        """Gives a slot the blocks of its row. ``may_share``: whether others may have them too."""
        self._programs.tables[row.slot] = self._programs.reading_table[0]
        if may_share:
            self._name(row, row.length)

    def keep(self, row: Row) -> None:
        self._name(row, self._programs.held(row.slot))

    def _name(self, row: Row, held: int) -> None:
        """Notes what a row's blocks hold, after target and draft have read ``held`` tokens."""
        self.pool.name(self._keys(row.text, held), row.blocks)

    def clear(self) -> None:
        self.pool = BlockPool(self.pool.count)
        self._programs.tables[:] = 0

    def release(self, row: Row) -> None:
        self._programs.tables[row.slot] = 0
        self.pool.release(row.blocks)
        row.blocks = []

    def make_room(self, scheduler: Scheduler, rounds: int) -> None:
        for row in sorted(scheduler.rows, key=lambda row: row.age):
            need = min(row.length + rounds * self._step, row.handle.cost)
            while row.blocks and not self._grow(row, need):
                others = [each for each in scheduler.running if each.blocks]
                self._suspend(scheduler, max(others, key=lambda row: row.age))

    def _grow(self, row: Row, positions: int) -> bool:
        """Whether a row in a slot has blocks for so many positions now."""
        missing = self._count(positions) - len(row.blocks)
        blocks = self.pool.take(missing) if missing > 0 else []
        if blocks is None:
            return False
        row.blocks += blocks
        self._programs.tables[row.slot, : len(row.blocks)] = row.blocks
        return True

    def _suspend(self, scheduler: Scheduler, row: Row) -> None:
        """Takes a row's blocks away. It is read again later, and goes on where it was."""
        if row is not scheduler.reading:
            row.saved = self._programs.suspend(row.slot)
            row.held = held_in_blocks(row.saved, 0)
            self._name(row, row.held)
        self.release(row)
        scheduler.suspend(row)

    def _count(self, positions: int) -> int:
        return -(-positions // self._size)

    def _keys(self, text: Sequence[int], held: int) -> list[bytes]:
        """The keys of the whole blocks of a text, of which ``held`` tokens are read."""
        if self._longest is not None and len(text) > self._longest:
            return []
        return chain_keys(text, self._size, self._ahead)[: held // self._size]
