"""The measurements that the tests for reasons read."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...heads import Head
from ...requests.shared_vocabulary import translate_draft
from ...text.generator import Generator
from ...text.result import Result
from .distributions import Places, compare_places
from .texts import write_texts

MOST_TEXTS = 8
"""The most texts of a kind that target and draft read for the reasons."""

_CERTAIN = 1e-3
"""The p-value below which a difference between paired places does not count as chance."""


@dataclasses.dataclass(frozen=True, eq=False)
class Evidence:
    """The measurements of one examination.

    Attributes:
      generator: the target with its method and drafts.
      draft: the model, or the head's module, that reads texts beside the target; None without one.
        Of several drafts it is the first.
      forecasts: see ``forecast.forecast``, with the temperature of each.
      tokens_per_round: by temperature. Temperature 0 is among them, as a control.
      texts: the prompts with the target's continuations at the lowest temperature.
      user: for each of ``texts`` its places at temperature 1.
      own: the places of texts that the target writes from their first token on, at temperature 1.
        Both are empty without a draft that reads texts.
      conversations: the messages of ``texts``, if the prompts are conversations.
      nodes: the nodes that the target scores in a round of the method, of each row.
    """

    generator: Generator
    draft: Any
    forecasts: Sequence[dict]
    tokens_per_round: dict[float, float]
    texts: Sequence[Result]
    user: Sequence[Places] = ()
    own: Sequence[Places] = ()
    conversations: Sequence[list[dict]] | None = None
    nodes: int = 1

    def losses(self) -> list[dict]:
        """The forecasts in which drafting does not pay."""
        return [cast for cast in self.forecasts if cast["speedup"] < 1]


@dataclasses.dataclass(frozen=True)
class Reason:
    """A reason of a low speed-up or acceptance, and the figures of its test.

    Attributes:
      name: the name of the reason, see ``reasons``.
      text: sentences with the finding and the remedy.
      figures: the numbers of the test, for JSON.
    """

    name: str
    text: str
    figures: dict


def tokens_of(text: Result) -> list[int]:
    """The tokens of a prompt and its continuation."""
    return [*text.prompt_token_ids, *text.token_ids]


def draft_of(generator: Generator):
    """The module with which the generator's first draft reads texts; None without such a draft."""
    draft = next(iter(generator.drafts), None)
    if draft is None or isinstance(draft, Head):
        return None if draft is None or draft.config.reads_cache else draft.module
    return translate_draft(draft, generator.target)


def read(generator: Generator, draft, texts: Sequence[Result]) -> list[Places]:
    """The places of texts from their second token on, at temperature 1."""
    target = generator.target.model
    return [compare_places(target, draft, tokens_of(text), 1, temperature=1.0) for text in texts]


def write_own(plain: Generator, tokens: int, rows: int) -> list[Result]:
    """Texts that the target writes at temperature 1 after the token that begins or ends a text.

    Target and draft should both know such a text, whatever the user's prompts are about.
    """
    tokenizer = plain.target.tokenizer
    config = plain.target.config
    candidates = (tokenizer.bos_token_id, tokenizer.eos_token_id, *config.eos_token_ids, 0)
    start = next(id for id in candidates if isinstance(id, int))
    return write_texts(plain, [[start]] * MOST_TEXTS, tokens, 1.0, rows)


def mean(places: Sequence[Places], field: str) -> float:
    """The mean of a field over the places of all texts."""
    return float(np.concatenate([getattr(each, field) for each in places]).mean())


def if_accepted_more(
    name: str, text: str, before: Sequence[Places], after: Sequence[Places], figure: str, **figures
) -> Reason | None:
    """The reason that the draft is accepted more in another setting, where it is; else None.

    Args:
      name: that of the reason.
      text: its text, with ``{before}`` and ``{after}`` in place of both acceptances.
      before, after: the same places in the examined setting and in the other one.
      figure: the name of the acceptance in the other setting.
      figures: more figures of the reason.
    """
    if not rises(before, after):
        return None
    acceptance = mean(before, "overlap")
    other_acceptance = mean(after, "overlap")
    text = text.format(before=acceptance, after=other_acceptance)
    return Reason(name, text, {"acceptance": acceptance, figure: other_acceptance} | figures)


def rises(before: Sequence[Places], after: Sequence[Places]) -> bool:
    """True if the acceptance of the same places is higher by a tenth and not by chance.

    The test is Wilcoxon's signed-rank test on ``overlap``.
    """
    from scipy import stats  # a second of imports

    a, b = (np.concatenate([each.overlap for each in places]) for places in (before, after))
    if b.mean() <= 1.1 * a.mean():
        return False
    test: Any = stats.wilcoxon(b - a, alternative="greater")  # scipy has no types
    return bool(test.pvalue < _CERTAIN)
