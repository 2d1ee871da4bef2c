"""The base class of methods with a trained head."""

import dataclasses
from typing import Any

from ...loop.drafter import Drafter


@dataclasses.dataclass(frozen=True)
class HeadDrafter(Drafter):
    """A method that drafts with a trained head.

    Attributes:
      head: the head's configuration.
    """

    head: Any = dataclasses.field(kw_only=True)

    @property
    def taps(self) -> tuple[int, ...]:
        return self.head.taps
