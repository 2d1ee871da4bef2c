"""The base class of methods that may be a part of ``Switch``, ``Adaptive`` and ``Merged``."""

import dataclasses
from typing import TYPE_CHECKING, Any

from ...core.state import DecodeState
from ...loop.drafter import Drafter


@dataclasses.dataclass(frozen=True)
class Member(Drafter):
    """A method that proposes chains of ``num_speculative_tokens``, and may skip rounds."""

    if TYPE_CHECKING:  # the field of the subclasses

        @property
        def num_speculative_tokens(self) -> int: ...

    def catch_up(self, draft, state: DecodeState) -> Any:
        """The method's state after it has read the tokens of the rounds that it skipped.

        The outer method calls this before ``propose``, because it may skip the method in a round,
        or tell it that fewer of its tokens were accepted.
        """
        return state.drafter
