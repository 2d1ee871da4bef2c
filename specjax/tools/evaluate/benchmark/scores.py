"""Scores of answers: Rouge, last numbers, boxed terms, the overlap of words, right options."""

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from ..suites import Question
from .answers import Answer

_WORD = re.compile(r"[a-z0-9]+")
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
_ARTICLE = re.compile(r"\b(a|an|the)\b")


def rouge(text: str, reference: str) -> tuple[float, float, float]:
    """F of Rouge-1, Rouge-2 and Rouge-L (Lin 2004), on lower-case words without stemming.

    F is 1 where neither text has such words.
    """
    words = _WORD.findall(text.lower())
    expected = _WORD.findall(reference.lower())
    return _f_of_grams(words, expected, 1), _f_of_grams(words, expected, 2), _f_of_longest(words, expected)


def mean_rouge(answers: Sequence[Answer], questions: Sequence[Question]) -> dict[str, float]:
    """The mean F of Rouge-1, 2 and L against the first reference."""
    scores = [rouge(text, references[0]) for text, references in _pairs(answers, questions)]
    return dict(zip(("rouge-1", "rouge-2", "rouge-l"), np.mean(scores, axis=0).tolist() if scores else ()))


def number_accuracy(answers: Sequence[Answer], questions: Sequence[Question]) -> dict[str, float]:
    """The share of answers whose last number is the reference's (Cobbe et al. 2021, GSM8K)."""
    return _means(_pairs(answers, questions), accuracy=lambda text, references: _same_number(text, references[0]))


def boxed_accuracy(answers: Sequence[Answer], questions: Sequence[Question]) -> dict[str, float]:
    r"""The share of answers whose last ``\boxed{...}`` is the reference, blanks left out."""

    def is_same(text: str, references: Sequence[str]) -> bool:
        return _strip(last_boxed(text)) == _strip(references[0])

    return _means(_pairs(answers, questions), accuracy=is_same)


def overlap(answers: Sequence[Answer], questions: Sequence[Question]) -> dict[str, float]:
    """Exact match and F of words, the best over the references (Rajpurkar et al. 2016, SQuAD).

    Only the first line of an answer counts, since a model without a chat template writes on.
    """

    def words(text: str) -> list[str]:
        return _ARTICLE.sub(" ", "".join(c for c in text.lower() if c not in string.punctuation)).split()

    def line(text: str) -> list[str]:
        return words(text.partition("\n")[0])

    return _means(
        _pairs(answers, questions),
        exact=lambda text, references: max(line(text) == words(each) for each in references),
        f1=lambda text, references: max(_f_of_grams(line(text), words(each), 1) for each in references),
    )


def choice_accuracy(answers: Sequence[Answer], questions: Sequence[Question]) -> dict[str, float]:
    """The share of questions whose right option is the likeliest, in all and by character.

    They are the accuracy and the normalised accuracy of HellaSwag's tables. The options are read
    under the target, so that no draft can change the figures.
    """
    likeliest = [np.argmax(answer.options) == q.right for answer, q in zip(answers, questions)]
    sizes = [[len(option) for option in question.options] for question in questions]
    by_size = [np.argmax(np.divide(a.options, n)) == q.right for a, n, q in zip(answers, sizes, questions)]
    return {"accuracy": float(np.mean(likeliest)), "accuracy_by_character": float(np.mean(by_size))}


def last_number(text: str) -> float | None:
    """The last number in a text, with commas between thousands left out."""
    numbers = _NUMBER.findall(text)
    return float(numbers[-1].replace(",", "")) if numbers else None


def last_boxed(text: str) -> str | None:
    r"""The inside of the last ``\boxed{...}``, whose braces balance; None without one."""
    _, boxed, rest = text.rpartition("\\boxed{")
    depth = 1
    for i, character in enumerate(rest if boxed else ""):
        depth += {"{": 1, "}": -1}.get(character, 0)
        if not depth:
            return rest[:i]
    return None


def _same_number(text: str, reference: str) -> bool:
    return last_number(text) is not None and last_number(text) == last_number(reference)


def _pairs(answers: Sequence[Answer], questions: Sequence[Question]) -> list[tuple[str, tuple[str, ...]]]:
    """The first answer to each question that has references, and its references."""
    return [(a.turns[0].text, q.references) for a, q in zip(answers, questions) if q.references]


def _means(pairs: Sequence[tuple[str, tuple[str, ...]]], **figures: Callable) -> dict[str, float]:
    """The mean of each figure; nothing where no question has a reference."""
    return {name: float(np.mean([figure(*pair) for pair in pairs])) for name, figure in figures.items() if pairs}


def _strip(term: str | None) -> str | None:
    return None if term is None else "".join(term.split())


def _f_of_grams(words: Sequence[str], expected: Sequence[str], n: int) -> float:
    ours, theirs = (Counter(zip(*(each[i:] for i in range(n)))) for each in (words, expected))
    return _f((ours & theirs).total(), ours.total(), theirs.total())


def _f_of_longest(words: Sequence[str], expected: Sequence[str]) -> float:
    """F by the longest common subsequence."""
    row = [0] * (len(expected) + 1)
    for word in words:
        before = 0
        for j, other in enumerate(expected, 1):
            before, row[j] = row[j], before + 1 if word == other else max(row[j], row[j - 1])
    return _f(row[-1], len(words), len(expected))


def _f(common: int, ours: int, theirs: int) -> float:
    """2 P R / (P + R), which is 2 common / (ours + theirs)."""
    return 2 * common / (ours + theirs) if ours + theirs else 1.0


SCORES: dict[str, Callable[[Sequence[Answer], Sequence[Question]], dict[str, float]]] = {
    "rouge": mean_rouge,
    "number": number_accuracy,
    "boxed": boxed_accuracy,
    "overlap": overlap,
    "choice": choice_accuracy,
}
"""The scores of suites by name. Each returns figures by their names."""
