"""Questions that a chat model writes itself: the turns of a user, sampled from its own template.

The idea is that of Magpie (2406.08464): a model that is trained on conversations continues the
beginning of a user's turn with a question.
"""

import itertools
import re
from collections.abc import Iterator

from ...checkpoints.load import LanguageModel
from ...engine.engine import Engine
from ...errors import RequestError
from ...requests.chat import Conversation
from .ordered import write_in_order

THEMES = (
    "",
    "The user asks for help with writing: letters, stories, descriptions or advice on style.",
    "The user asks a question about programming and wants code or an explanation of code.",
    "",
    "The user asks a question about mathematics, often a word problem with numbers.",
    "The user gives a passage of text and asks for a summary or for facts from it.",
    "The user asks for a fact about history, science, geography or everyday life.",
    "The user asks the assistant to reason about a puzzle, a plan or a decision.",
    "",
    "The user asks for a translation, a rewritten sentence, a list or a table.",
)
"""Instructions for the writer of questions, in turn. An empty one leaves the template's own."""

LONGEST = 256
"""The most tokens of a question."""

_MIN_P = 0.05
"""Leaves out unlikely tokens. Unlike top-p it reads the vocabulary once."""

_MARK = "specjax-question"
_LEAST_WORDS = 3
_LEAST_NEW = 0.6
"""The least share of a question's three-word sequences that occur once."""


def write_questions(
    engine: Engine, seed: int, start: int = 0, count: int | None = None
) -> Iterator[tuple[int, str | None]]:
    """Numbers from ``start`` on, each with its question; None for a text that is no good question.

    There are ``count`` of them, or no end. The question of a number depends only on the number, the
    seed and the model.

    Raises RequestError where the chat template is missing or rewrites the user's turn.
    """
    target = engine.target
    beginnings = [_begin_turn(target, theme) for theme in THEMES]
    room = engine.capacity - max(map(len, beginnings)) - 1
    numbers = range(start, start + count) if count is not None else itertools.count(start)
    requests = (
        dict(
            prompt=beginnings[i % len(beginnings)],
            temperature=1.0,
            min_p=_MIN_P,
            max_new_tokens=min(LONGEST, room),
            seed=seed + i,
        )
        for i in numbers
    )
    for number, result in enumerate(write_in_order(engine, requests), start):
        question = result.text.strip()
        yield number, question if result.finish_reason == "stop" and is_good(question) else None


def _begin_turn(target: LanguageModel, theme: str) -> list[int]:
    """The tokens of a conversation up to where the user's words begin."""
    user = {"role": "user", "content": _MARK}
    messages = [{"role": "system", "content": theme}, user] if theme else [user]
    try:
        text = Conversation(messages).text(target.tokenizer)
    except RequestError:
        if not theme:
            raise
        return _begin_turn(target, "")  # the template knows no system's turn
    before, mark, _ = text.partition(_MARK)
    if not mark or not before:
        raise RequestError("the chat template writes nothing before the user's words; give texts with --data")
    return target.tokenizer.encode(before, add_special_tokens=False)


def is_good(question: str) -> bool:
    """Whether a question has enough words and does not repeat itself."""
    return len(question.split()) >= _LEAST_WORDS and share_of_new(question) >= _LEAST_NEW


def share_of_new(text: str, length: int = 3) -> float:
    """The share of distinct sequences of ``length`` words among all of them; 1 for a short text."""
    sequences = word_sequences(text, length)
    return len(set(sequences)) / len(sequences) if sequences else 1.0


def word_sequences(text: str, length: int) -> list[tuple[str, ...]]:
    """All sequences of ``length`` words, in lower case and without punctuation."""
    words = re.findall(r"\w+", text.lower())
    return list(zip(*(words[i:] for i in range(length))))
