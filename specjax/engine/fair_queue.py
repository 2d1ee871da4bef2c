"""The order in which waiting requests begin: by priority, and in fair shares."""

import bisect
import dataclasses
from collections.abc import Collection, Iterator
from typing import Generic, TypeVar

from ..core.checks import LARGEST, check_text, whole

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Standing:
    """The place of a request among others that wait.

    Attributes:
      priority: requests with a lower number begin earlier, as in vLLM.
      owner: the name of whoever asks. Owners whose requests wait get equal shares.

    Raises RequestError for a priority beyond 32 bits, and for an owner that is no text.
    """

    priority: int = 0
    owner: str = ""

    def __post_init__(self):
        whole("priority", self.priority, -LARGEST, LARGEST)
        check_text(self.owner, "owner")


class FairQueue(Generic[T]):
    """Items that wait, in the order in which they begin.

    Of several priorities the lowest number comes first. Within one the items are ordered by tags
    (start-time fair queueing, Goyal, Vin and Cheng 1996, section 2): an item's tag is the owner's
    sum of costs so far, or the tag of the item that began last if this is larger. So owners begin
    equal costs while they wait, an owner who was away has saved nothing, and the items of one owner
    keep their order. An empty queue forgets all costs.
    """

    def __init__(self):
        self._waiting: list[tuple[int, int, int, T]] = []
        self._now = 0
        self._spent: dict[str, int] = {}
        self._count = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[T]:
        return (item for *_, item in self._waiting)

    def add(self, item: T, standing: Standing, cost: int) -> None:
        """Adds an item. ``cost``: its work, at least 1."""
        if not self._waiting:
            self._spent.clear()
        tag = max(self._now, self._spent.get(standing.owner, 0))
        self._spent[standing.owner] = tag + cost
        self._count += 1
        bisect.insort(self._waiting, (standing.priority, tag, self._count, item))

    @property
    def first(self) -> T:
        """The item that begins next."""
        return self._waiting[0][-1]

    def pop(self) -> T:
        """Takes out the item that begins next."""
        _, tag, _, item = self._waiting.pop(0)
        self._now = max(self._now, tag)
        self._spent = {owner: spent for owner, spent in self._spent.items() if spent > self._now}
        return item

    def remove(self, items: Collection[T]) -> None:
        """Takes out items before they begin. Their costs still count."""
        self._waiting = [entry for entry in self._waiting if entry[-1] not in items]

    def clear(self) -> None:
        """Takes out all items."""
        self._waiting.clear()
