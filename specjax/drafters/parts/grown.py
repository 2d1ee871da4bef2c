"""Methods whose chain or tree grows from a reader: the method's options become a ``Grower``, which
does the work.
"""

import dataclasses
from functools import cached_property
from typing import Any

from ...drafter import Drafter
from ...verify import Drawn


@dataclasses.dataclass(frozen=True)
class GrownDrafter(Drafter):
    """A method that hands every function to its grower."""

    def __post_init__(self):
        _ = self.grower  # raises RequestError where the options do not fit

    @cached_property
    def grower(self) -> Drafter:
        """The chain or tree that grows, with its reader.

        Raises RequestError where the options do not fit.
        """
        raise TypeError(f"{type(self).__name__} must define grower")

    @property
    def depth(self) -> int:
        return self.grower.depth

    @property
    def drawn(self) -> Drawn:
        return self.grower.drawn

    def init(self, target, draft, tokens, lengths, taps, *, chunk, dtype):
        return self.grower.init(target, draft, tokens, lengths, taps, chunk=chunk, dtype=dtype)

    def propose(self, target, draft, state, key):
        return self.grower.propose(target, draft, state, key)

    def commit(self, target, draft, state, tree, scored, verdict):
        return self.grower.commit(target, draft, state, tree, scored, verdict)


@dataclasses.dataclass(frozen=True)
class HeadDrafter(GrownDrafter):
    """A method whose chain or tree is read by a feature head.

    Attributes:
      head: the head's configuration.
    """

    head: Any = dataclasses.field(kw_only=True)

    @property
    def taps(self) -> tuple[int, ...]:
        return self.head.taps
