"""The table of reasons. Each reason has a test, and is named where its test holds."""

from collections.abc import Callable

from .cost_reasons import drafting, experts, temperature, verification
from .draft_reasons import capacity, unseen_text
from .head_reasons import head_inputs, quantised_target
from .measurements import Evidence, Reason
from .vocabulary_reasons import chat_template, lacking_tokens, other_ids, special_tokens

Test = Callable[[Evidence], Reason | None]

SPECIAL: tuple[Test, ...] = (
    lacking_tokens, other_ids, special_tokens, chat_template, head_inputs, quantised_target, unseen_text, temperature,
)  # fmt: skip
"""The tests for reasons of a low acceptance that can be mended."""

EXPENSE: tuple[Test, ...] = (verification, experts, drafting)
"""The tests for reasons in the time of a round."""


def find_reasons(evidence: Evidence) -> list[Reason]:
    """All reasons that the tests find. The draft's capacity counts where no special reason does."""
    special = [reason for test in SPECIAL if (reason := test(evidence))]
    general = (capacity, *EXPENSE) if not special else EXPENSE
    return special + [reason for test in general if (reason := test(evidence))]
