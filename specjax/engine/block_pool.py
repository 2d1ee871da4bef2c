"""The numbers of the blocks in an engine's pools: who uses them, and what they hold."""

from collections import OrderedDict
from collections.abc import Sequence


class BlockPool:
    """Gives out blocks, and takes them back after their last user.

    A block with keys holds tokens that later rows may share or copy. Each key stands for some more
    of its tokens. Without users it keeps them until a row needs a block and none is empty; the
    least recently used leaves first.

    Args:
      count: the number of blocks. Their numbers begin with 1.

    Attributes:
      count: the number of blocks.
    """

    def __init__(self, count: int):
        self.count = count
        self._empty = list(range(count, 0, -1))
        self._users: dict[int, int] = {}
        self._by_key: dict[bytes, int] = {}
        self._keys: dict[int, list[bytes]] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()  # with keys and without users; first to leave first

    @property
    def used(self) -> int:
        """The number of blocks that rows use."""
        return len(self._users)

    def has(self, count: int) -> bool:
        """Whether ``count`` blocks have no users."""
        return count <= len(self._empty) + len(self._idle)

    def take(self, count: int) -> list[int] | None:
        """``count`` blocks for a user, or None if there are not so many."""
        if not self.has(count):
            return None
        blocks = [self._empty.pop() if self._empty else self._forget_oldest() for _ in range(count)]
        self._users |= dict.fromkeys(blocks, 1)
        return blocks

    def share(self, keys: Sequence[bytes]) -> list[int]:
        """The blocks of ``keys`` before the first unknown key, with one more user each."""
        blocks = []
        for key in keys:
            if key not in self._by_key:
                break
            block = self._by_key[key]
            self._idle.pop(block, None)
            self._users[block] = self._users.get(block, 0) + 1
            blocks.append(block)
        return blocks

    def find(self, key: bytes) -> int | None:
        """The block with a key, which may be taken by the next row, or None."""
        block = self._by_key.get(key)
        if block in self._idle:
            self._idle.move_to_end(block)
        return block

    def name(self, keys: Sequence[bytes], blocks: Sequence[int]) -> None:
        """Notes for each key the block with its last tokens, unless another block has the key."""
        for key, block in zip(keys, blocks):
            if self._by_key.setdefault(key, block) == block and key not in self._keys.get(block, ()):
                self._keys.setdefault(block, []).append(key)

    def release(self, blocks: Sequence[int]) -> None:
        """Takes back one use of each block of a row. The end of the row is the first to leave."""
        for block in reversed(blocks):
            self._users[block] -= 1
            if self._users[block]:
                continue
            del self._users[block]
            if block in self._keys:
                self._idle[block] = None
            else:
                self._empty.append(block)

    def _forget_oldest(self) -> int:
        block, _ = self._idle.popitem(last=False)
        for key in self._keys.pop(block):
            del self._by_key[key]
        return block
