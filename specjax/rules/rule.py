"""The record of an acceptance rule, and the ways of drawing that decide which rule is exact."""

import dataclasses
import enum
from collections.abc import Callable
from typing import Any

from ..core.verdict import Verdict


class Drawn(enum.StrEnum):
    """How the nodes of a tree were drawn from its q.

    CHAIN_OR_CHOSEN: trees with a q are drawn chains, and the nodes of trees without one are chosen.
    """

    CHOSEN = "chosen"
    CHAIN = "chain"
    CHAIN_OR_CHOSEN = "chain_or_chosen"
    WITHOUT_REPLACEMENT = "without_replacement"
    INDEPENDENT = "independent"
    FROM_SEVERAL = "from_several"


@dataclasses.dataclass(frozen=True)
class Rule:
    """An acceptance rule. It is called as its function ``apply``.

    Attributes:
      name: the public name.
      apply: the function for one row, ``(p, tree, key) -> Verdict``, see ``rules.acceptance``. It
        takes the facts that the rule ``reads`` as keyword arguments.
      exact_for: the ways of drawing for which the rule is exact, or that a lossy rule takes; None
        for a rule that takes any tree. A rule that divides by q must name them.
      default_for: the ways of drawing for which "auto" picks the rule.
      lossy: whether the rule changes the target's distribution.
      plain_if_seeded: whether a row with a seed gets the text of plain decoding, so that its text
        does not depend on where rounds begin.
      judges_greedy: whether the rule also judges greedy rows, with p at temperature 1. Without it
        greedy rows have a p that is one-hot, and a batch of greedy rows gets the greedy walk. q of
        a greedy row is that of its draft: one-hot, where the draft is greedy too.
      reads: the facts that the rule reads besides p, tree and key, each for one row: "greedy"
        (bool []), whether the temperature is 0; "seeded" (bool []), whether the request has a seed;
        "rate" (float32 []), accepted drafts / drafted tokens so far, 1 before the first; "cosines"
        (float32 [N]), see ``soft.cosines_of``.
      with_margin: makes ``apply`` from a margin from 0 to 1, for a rule that can be named
        "soft_match=0.1".
      apply_rows: the same as ``apply`` for a batch, if it saves work that ``vmap(apply)`` does.
    """

    name: str
    apply: Callable[..., Verdict]
    exact_for: tuple[Drawn, ...] | None = None
    default_for: tuple[Drawn, ...] = ()
    lossy: bool = False
    plain_if_seeded: bool = False
    judges_greedy: bool = False
    reads: tuple[str, ...] = ()
    with_margin: Callable[[float], Callable[..., Verdict]] | None = None
    apply_rows: Callable[..., Verdict] | None = None

    def __call__(self, *args: Any, **facts: Any) -> Verdict:
        return self.apply(*args, **facts)


def as_rule(rule: Rule | Callable[..., Verdict]) -> Rule:
    """The record of a rule; a plain function ``(p, tree, key) -> Verdict`` becomes one."""
    return rule if isinstance(rule, Rule) else Rule(getattr(rule, "__name__", "rule"), rule)
