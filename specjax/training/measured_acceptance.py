"""Decoding during training, to measure a drafter's acceptance."""

from collections.abc import Sequence

from ..checkpoints.load import LanguageModel
from ..core.stats import total
from ..heads.base import Head, HeadModule
from ..models.decoder import Decoder
from ..text.generator import Generator
from .kinds import KINDS


class MeasuredAcceptance:
    """Measures the mean acceptance length of a drafter on held-out prompts.

    The decoding loop is compiled once for all parameters of the drafter.

    Args:
      target: the model that the drafter drafts for.
      kind: the kind of the drafter, see ``kinds.KINDS``.
      prompts: token ids.
      tokens: the number of new tokens for each prompt, decoded greedily.
    """

    def __init__(self, target: LanguageModel, kind: str, prompts: Sequence[list[int]], tokens: int = 64):
        self.target = target
        self.kind = KINDS[kind]
        self.prompts = list(prompts)
        self.tokens = tokens
        self.generator = None

    def __call__(self, module: HeadModule | Decoder) -> float | None:
        """The mean number of tokens for each call of the target; None without prompts."""
        if not self.prompts:
            return None
        if self.generator is None:
            draft = self.kind.wrap(module, self.target, self.kind.name)
            method = None if isinstance(draft, Head) else "draft_model"
            self.generator = Generator(self.target, method, draft)
        else:
            self.generator.update(draft=module)
        results = self.generator(self.prompts, max_new_tokens=self.tokens, ignore_eos=True)
        return total([result.stats for result in results]).mean_acceptance_length
