"""The texts on which a method is examined, and the number of its rounds for them."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...core.tree import expansion
from ...errors import RequestError
from ...heads import Head
from ...text.generator import Generator
from ...text.result import Result
from ..tune.head_trees import ranks_of
from .distributions import compare_places
from .round_replay import chain_chances, sample_rounds, tree_chances

_SAMPLES = 8
"""Replays of a text above temperature 0, where acceptance is random."""

_ONE_READING = ("draft_model", "medusa", "hydra")
"""The methods whose rounds follow from one reading of a text at any temperature."""


def write_texts(
    generator: Generator, prompts: Sequence[Sequence[int]], new_tokens: int, temperature: float, rows: int
) -> list[Result]:
    """The continuation of each prompt, decoded in batches of ``rows``.

    The last batch is filled with repeated prompts, so that all batches share a program.
    """
    results: list[Result] = []
    options: dict[str, Any] = dict(temperature=temperature, max_new_tokens=new_tokens, ignore_eos=True)
    for first in range(0, len(prompts), rows):
        part = [list(prompts[(first + i) % len(prompts)]) for i in range(rows)]
        results += generator(part, seed=list(range(first, first + rows)), **options)
    return results[: len(prompts)]


def is_forced(generator: Generator, temperature: float) -> bool:
    """True if the rounds of a method follow from one reading of a text that the target wrote.

    Otherwise the proposals depend on the tree's own scores, or on a table that the rounds fill.
    """
    if generator.drafter.chooser:
        return False
    if generator.method == "tree":
        return temperature == 0 and generator.drafter.siblings != "independent"  # type: ignore[attr-defined]
    return generator.method in _ONE_READING or generator.method == "mtp" and temperature == 0


def count_rounds(
    generator: Generator, texts: Sequence[Result], tokens: int, temperature: float, rows: int
) -> np.ndarray:
    """The rounds int [texts, samples] that the method takes for ``tokens`` new tokens of each text.

    They are replayed where they follow from the texts, else the method decodes the prompts. In a
    replay above temperature 0 drafts are tested one by one. The rule ``block`` accepts a few more.

    Args:
      texts: texts of the target at this temperature, at least ``depth`` tokens longer.
      rows: the rows of a batch that decodes.
    """
    if is_forced(generator, temperature):
        chances = [_chances(generator, text, temperature)[:tokens] for text in texts]
        return sample_rounds(chances, _SAMPLES if temperature else 1)
    results = write_texts(generator, [text.prompt_token_ids for text in texts], tokens, temperature, rows)
    return np.array([[result.stats.target_calls] for result in results])


def check_room(generator: Generator, prompts: Sequence[Sequence[int]], tokens: int) -> None:
    """Raises RequestError where a prompt leaves too little room in the context."""
    context = generator.target.config.context
    most = context - tokens - 3 * (generator.drafter.depth + 1)
    for i, prompt in enumerate(prompts, 1):
        if len(prompt) > most:
            raise RequestError(
                f"prompt {i} has {len(prompt)} tokens, and {max(most, 0)} are the most beside {tokens} new ones in a "
                f"context of {context}; use shorter prompts or lower max_new_tokens"
            )


def _chances(generator: Generator, text: Result, temperature: float) -> np.ndarray:
    """The chances of the drafts at every root of the continuation, see ``round_replay``."""
    drafter = generator.drafter
    depth = drafter.depth
    target = generator.target
    if generator.method in ("draft_model", "tree"):
        ids = [*text.prompt_token_ids, *text.token_ids]
        first = len(text.prompt_token_ids) - 1
        places = compare_places(target.model, generator.session.parameters, ids, first, temperature=temperature)
        if generator.method == "draft_model":
            return chain_chances(places.accepted, depth)
        ranks = np.pad(places.rank, (0, depth), constant_values=np.inf)
        by_depth = np.stack([ranks[d : d + places.rank.size] for d in range(depth)], 1)
        return tree_chances(by_depth, drafter.tree)  # type: ignore[attr-defined]  # method tree has the field
    (head,) = generator.drafts
    assert isinstance(head, Head)
    tree = expansion((1,) * depth) if generator.method == "mtp" else drafter.tree  # type: ignore[attr-defined]
    return tree_chances(ranks_of(target, head, [text], depth=depth), tree)
