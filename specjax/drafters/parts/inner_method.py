"""Chains that come from an inner loop: shared by the cascades."""

import dataclasses

from ...core.tree import node_count
from ..draft_model import DraftModel
from ..ngram import Ngram
from .draft_sampling import DrawnChain


@dataclasses.dataclass(frozen=True)
class InnerMethod(DrawnChain):
    """A method whose rounds run an inner loop, in which an inner method drafts; see ``inner_loop``.

    Attributes:
      num_speculative_tokens: tokens that the target tests in a round.
      inner_speculative_tokens: tokens that the model of the inner loop tests in a call. A draft
        below that model draws them. Without such a draft they are looked up in the row.
      prompt_lookup_max, prompt_lookup_min: as in ``Ngram``, for tokens that are looked up.
    """

    num_speculative_tokens: int = 5
    inner_speculative_tokens: int = 3
    prompt_lookup_max: int = 4
    prompt_lookup_min: int = 1

    def __post_init__(self):
        node_count("inner_speculative_tokens", self.inner_speculative_tokens)
        self.inner(None)
        super().__post_init__()

    def inner(self, model) -> Ngram | DraftModel:
        """The inner method: a chain of the draft ``model``, or n-grams for None."""
        if model is not None:
            return DraftModel(self.inner_speculative_tokens)
        return Ngram(self.inner_speculative_tokens, self.prompt_lookup_max, self.prompt_lookup_min)
