"""The blocks that each row of an engine has, and the row that waits when they are few."""

from collections.abc import Sequence
from operator import eq

from ..loop.jump_forward import MOST_FORCED
from .block_pool import BlockPool
from .pools import held_in_blocks
from .prefix_blocks import BLOCK as STEP
from .prefix_cache import chain_keys
from .programs import Programs
from .prompt_reader import Row
from .scheduler import RowMemory, Scheduler


class BlockMemory(RowMemory):
    """Gives rows blocks of the pools, for prompts that begin alike the same ones.

    A block of which a row has only the first tokens is copied: ``STEP`` of them, or a multiple. A
    draft writes the newest tokens of a row again, and may read some tokens behind a key's position.
    So what rows share is followed by ``_ahead`` tokens that all of them have.

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
        self._steps = size // STEP
        drafter = programs.session.drafter
        self._step = max(drafter.depth, MOST_FORCED) + 1
        self._ahead = 2 * drafter.depth + 1 if programs.draft_reads else 0
        # A draft that reads all features at once and a recurrent layer begin with the first token.
        whole = bool(drafter.taps) and not programs.draft_reads or programs.has_states
        self.shares = share and not whole
        self._longest = longest

    @property
    def usage(self) -> float:
        return self.pool.used / self.pool.count

    def begin(self, row: Row, reading: Sequence[Row]) -> bool:
        row.keys = self._keys(row.text, row.length)
        keys = [] if row.is_scored else row.keys[: row.held // STEP]
        if any(self._will_have_more(keys, other) for other in reading):
            return False
        shared = self.pool.share(keys[self._steps - 1 :: self._steps])
        others = self.pool.take(self._count(row.length) - len(shared))
        if others is None:
            self.pool.release(shared)
            return False
        row.blocks = shared + others
        row.start = len(shared) * self._size + self._copy_part(keys[len(shared) * self._steps :], others[0])
        return True

    def _will_have_more(self, keys: Sequence[bytes], other: Row) -> bool:
        """Whether a row with ``keys`` shares tokens with ``other`` that are not in the pool yet."""
        alike = sum(map(eq, keys, other.keys))
        return alike > 0 and self.pool.find(keys[alike - 1]) is None

    def _copy_part(self, keys: Sequence[bytes], block: int) -> int:
        """Copies the tokens with most of ``keys`` to a block. Returns their number."""
        for count in range(min(len(keys), self._steps - 1), 0, -1):
            if source := self.pool.find(keys[count - 1]):
                self._programs.copy_block(source, block)
                return count * STEP
        return 0

    def place(self, row: Row, may_share: bool) -> None:
        """Gives a slot the blocks of its row. ``may_share``: whether others may have them too."""
        self._programs.tables[row.slot] = self._programs.table_of([row.blocks])[0]
        if may_share:
            self._name(row, row.length)

    def keep(self, row: Row, new: Sequence[int]) -> None:
        self._name(row, self._programs.held(row.slot), new)

    def _name(self, row: Row, held: int, new: Sequence[int] = ()) -> None:
        """Notes what a row's blocks hold, after target and draft have read ``held`` tokens.

        ``new``: tokens that its text lacks yet.
        """
        keys = self._keys([*row.text, *new], held)
        self.pool.name(keys, [row.blocks[i // self._steps] for i in range(len(keys))])

    def clear(self) -> None:
        self.pool = BlockPool(self.pool.count)
        self._programs.tables[:] = 0

    def release(self, row: Row) -> None:
        self._programs.tables[row.slot] = 0
        self.pool.release(row.blocks)
        row.blocks = []

    def has_room(self, rows: Sequence[Row], rounds: int) -> bool:
        return self.pool.has(sum(max(self._count(self._need(row, rounds)) - len(row.blocks), 0) for row in rows))

    def make_room(self, scheduler: Scheduler, rounds: int) -> None:
        for row in sorted(scheduler.rows, key=lambda row: row.age):
            while row.blocks and not self._grow(row, self._need(row, rounds)):
                others = [each for each in scheduler.running if each.blocks]
                self._suspend(scheduler, max(others, key=lambda row: row.age))

    def _need(self, row: Row, rounds: int) -> int:
        """The positions of a row after so many rounds."""
        return min(row.length + rounds * self._step, row.handle.cost)

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
        if row not in scheduler.reading:
            row.saved = self._programs.suspend(row.slot)
            row.held = held_in_blocks(row.saved, 0)
            self._name(row, row.held)
        self.release(row)
        scheduler.suspend(row)

    def _count(self, positions: int) -> int:
        return -(-positions // self._size)

    def _keys(self, text: Sequence[int], held: int) -> list[bytes]:
        """The keys of each ``STEP`` tokens of a text, of which ``held`` tokens are read."""
        if not self.shares or self._longest is not None and len(text) > self._longest:
            return []
        return chain_keys(text, STEP, self._ahead)[: held // STEP]
