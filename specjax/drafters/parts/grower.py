"""Methods that turn their options into a *grower*, which grows the chain or the tree."""

import dataclasses
from functools import cached_property
from typing import Any

from ...loop.drafter import Drafter
from ...rules.acceptance import Drawn


@dataclasses.dataclass(frozen=True)
class GrownDrafter(Drafter):
    """A method that passes every call on to its grower."""

    def __post_init__(self):
        _ = self.grower  # raises RequestError if the options do not fit

    @cached_property
    def grower(self) -> Drafter:
        """The drafter that grows the chain or the tree, with its reader.

        Raises RequestError if the options do not fit.
        """
        raise TypeError(f"{type(self).__name__} must define grower")

    @property
    def depth(self) -> int:
        return self.grower.depth

    @property
    def drawn(self) -> Drawn:
        return self.grower.drawn

    def init(self, target, draft, tokens, lengths, taps, **reading):
        return self.grower.init(target, draft, tokens, lengths, taps, **reading)

    def reads(self, target, draft, tokens, lengths, taps):
        return self.grower.reads(target, draft, tokens, lengths, taps)

    def propose(self, target, draft, state, key):
        return self.grower.propose(target, draft, state, key)

    def commit(self, target, draft, state, tree, scored, verdict):
        return self.grower.commit(target, draft, state, tree, scored, verdict)

    def rest(self, target, draft, state, tree, scored, verdict):
        return self.grower.rest(target, draft, state, tree, scored, verdict)


@dataclasses.dataclass(frozen=True)
class HeadDrafter(GrownDrafter):
    """A method whose chain or tree comes from a feature head.

    Attributes:
      head: the head's configuration.
    """

    head: Any = dataclasses.field(kw_only=True)

    @property
    def taps(self) -> tuple[int, ...]:
        return self.head.taps
