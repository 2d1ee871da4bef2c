"""The probability of each continuation of a case, by enumeration in numpy."""

import itertools
import re
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np

from specjax.training.losses import scores

from ..models import p_value, warped
from .cases import CASES, LENGTH, NEVER, Case, V
from .methods import random_model

score = jax.jit(scores)


def p_values(
    counts: dict[str, np.ndarray], processed: bool = False, kind: str = "dense", cases: dict[str, Case] = CASES
) -> dict[str, float]:
    """The p-value of the counts of each case, and "pooled" that of all cases at once.

    ``processed``: the law with the processor ``loop.halve_after_repeat``. ``kind``: the class of the target.
    """
    laws = {name: law(case, processed, kind) for name, case in cases.items()}
    pooled = p_value(np.concatenate([*counts.values()]), np.concatenate([*laws.values()]))
    return {name: p_value(counts[name], laws[name]) for name in cases} | {"pooled": pooled}


def number(continuations: np.ndarray) -> np.ndarray:
    """A number for each continuation [n, LENGTH], the index in ``law``. The token V stands for "ended already"."""
    return np.ravel_multi_index(continuations.T, (V + 1,) * LENGTH)


@cache
def law(case: Case, processed: bool = False, kind: str = "dense") -> np.ndarray:
    """Probability [(V + 1) ** LENGTH] of each continuation.

    The target scores every text in one forward without a cache. Then a walk over the tree of all continuations multiplies
    the probabilities of their tokens.
    """
    texts = np.array([case.prompt + new for new in itertools.product(range(V), repeat=LENGTH)])
    logits = dict(
        zip(map(tuple, texts), np.asarray(score(random_model(0, kind), jnp.asarray(texts, jnp.int32)), np.float64))
    )
    total = np.zeros((V + 1) ** LENGTH)

    def grow(new: tuple[int, ...], p: float):
        if len(new) == LENGTH or case.stop in new or _contains(new, case.stop_string):
            total[number(np.array([new + (V,) * (LENGTH - len(new))]))] += p
            return
        text = case.prompt + new
        after = logits[text + (0,) * (LENGTH - len(new))][len(text) - 1]
        for token, chance in enumerate(_next_token(after, case, new, processed)):
            if chance > 0:
                grow((*new, token), p * chance)

    grow((), 1.0)
    return total


def _next_token(logits: np.ndarray, case: Case, new: tuple[int, ...], processed: bool) -> np.ndarray:
    """The distribution [V] after prompt and ``new``: each option by its definition, in the order of transformers."""
    logits = logits + np.array(case.bias)
    for token in set(case.prompt + new):
        logits[token] *= case.repetition_penalty if logits[token] < 0 else 1 / case.repetition_penalty
    for token in set(new):
        logits[token] -= case.presence_penalty + case.frequency_penalty * new.count(token)
    if len(new) < case.min_new_tokens and case.stop >= 0:
        logits[case.stop] = NEVER
    if case.language:
        logits[[not _can_end(case, (*new, token)) for token in range(V)]] = NEVER
    if case.grammar:
        logits[[not _can_grow(case, (*new, token)) for token in range(V)]] = NEVER
    text = case.prompt + new
    if processed and len(text) > 1 and text[-1] == text[-2]:
        logits[::2] /= 2
    return warped(logits, case.temperature, case.top_k, case.top_p, case.min_p)


def _can_end(case: Case, new: tuple[int, ...]) -> bool:
    """Whether ``new`` can become a match of the language, or a match and the stop token, within LENGTH tokens."""
    spell = lambda tokens: "".join(map(str, tokens))
    if new[-1] == case.stop:
        return re.fullmatch(case.language, spell(new[:-1])) is not None
    room = LENGTH - len(new)
    ways = (more for n in range(room + 1) for more in itertools.product(range(V), repeat=n))
    return any(case.stop not in more and re.fullmatch(case.language, spell(new + more)) for more in ways)


def _can_grow(case: Case, new: tuple[int, ...]) -> bool:
    """Whether ``new`` can become a match of the grammar, of any length, or is a match and the stop token."""
    spell = lambda tokens: "".join(map(str, tokens))
    if new[-1] == case.stop:
        return re.fullmatch(case.grammar, spell(new[:-1])) is not None
    ways = (more for n in range(4) for more in itertools.product(range(V), repeat=n))
    return any(re.fullmatch(case.grammar, spell(new + more)) for more in ways if case.stop not in (*new, *more))


def _contains(new: tuple[int, ...], string: tuple[int, ...]) -> bool:
    """Whether the stop string stands in ``new``."""
    return bool(string) and any(new[i : i + len(string)] == string for i in range(len(new)))
