"""The lossless grid: every method and every option on a vocabulary of five tokens, tested against the exact law.

The idea. A target with V = 5 tokens that emits at most LENGTH = 3 tokens has only 5 + 25 + 125 continuations. ``law.py``
enumerates all of them and computes the probability of each from the target's logits by the definitions of the options, in
plain numpy. ``loop.py`` decodes the same prompt thousands of times with the real loop, prefill to last token, and counts how
often each continuation came out. A chi-square test compares the counts with the law. A loop that loses exactness anywhere, in
drafting, in acceptance, in an option or at the end of a row, gives counts that the law does not explain.

The parts:

    cases.py     18 cases: a prompt and the options of one request each (temperature, top-k, penalties, a regular expression, ...)
    law.py       case -> the probability of each continuation; knows no cache, no tree, no batch
    methods.py   settings of the drafting methods with the rules to test them with; random models and heads; targets of each class
    loop.py      setting -> counts of continuations for each case; all cases share one batch, so that one setting compiles once
"""

from .cases import CASES, DRAFTS, LENGTH, Case, V
from .law import law, p_values
from .loop import count_draws, halve_after_repeat
from .methods import CONFIG, METHODS, PAIRS, TARGETS, random_model

__all__ = [
    "CASES", "CONFIG", "DRAFTS", "LENGTH", "METHODS", "PAIRS", "TARGETS", "Case", "V", "count_draws", "halve_after_repeat", "law", "p_values",
    "random_model",
]  # fmt: skip
