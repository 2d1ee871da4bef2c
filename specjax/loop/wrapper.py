"""The base class of drafting methods around another method."""

import dataclasses
from typing import TYPE_CHECKING

from ..rules.acceptance import Drawn
from .drafter import Drafter


@dataclasses.dataclass(frozen=True)
class Wrapper(Drafter):
    """A method around another one, its attribute ``drafter``.

    The other method does all that a subclass does not define.
    """

    if TYPE_CHECKING:  # a field or a property of the subclasses

        @property
        def drafter(self) -> Drafter: ...

    @property
    def depth(self) -> int:
        return self.drafter.depth

    @property
    def drawn(self) -> Drawn:
        return self.drafter.drawn

    @property
    def taps(self) -> tuple[int, ...]:
        return self.drafter.taps

    def init(self, target, draft, tokens, lengths, taps, **reading):
        return self.drafter.init(target, draft, tokens, lengths, taps, **reading)

    def reads(self, target, draft, tokens, lengths, taps):
        return self.drafter.reads(target, draft, tokens, lengths, taps)

    def propose(self, target, draft, state, key):
        return self.drafter.propose(target, draft, state, key)

    def commit(self, target, draft, state, tree, scored, verdict):
        return self.drafter.commit(target, draft, state, tree, scored, verdict)

    def rest(self, target, draft, state, tree, scored, verdict):
        return self.drafter.rest(target, draft, state, tree, scored, verdict)

    def check(self, config):
        self.drafter.check(config)

    def parameters(self, draft, vocab_size: int):
        return self.drafter.parameters(draft, vocab_size)

    def remember(self, parameters, texts):
        return self.drafter.remember(parameters, texts)
