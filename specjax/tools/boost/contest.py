"""Trains the candidates of a boost, and stops those that fall behind.

Successive halving (Jamieson and Talwalkar, 1502.07943): all are trained a little and measured, the
better half is trained further, until one is left or the training is over.
"""

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...checkpoints.heads import load_drafter
from ...checkpoints.load import LanguageModel
from ...core.stats import total
from ...drafters import own_options
from ...heads.base import Head
from ...text.generator import Generator
from ...training.recipe import Recipe, make_recipe
from ...training.run import train
from ..prune import Sizes, prune_target
from .candidates import CANDIDATES, Candidate, draft_layers
from .survey import RoundCost

MOST_DRAFTED = 5
"""The drafted tokens of a round in measurements of acceptance."""

_EVERY = 100
"""The steps between checkpoints. An interrupted training loses no more."""

_RUNGS = (1 / 9, 1 / 3, 1.0)
"""The shares of the training after which candidates are compared."""


@dataclasses.dataclass(frozen=True)
class Trial:
    """What the trainings of a boost share.

    Attributes:
      target: the model to draft for.
      texts: the files of conversations to train on.
      prompts: held-out prompts, token ids.
      chat: whether they are questions in the chat template.
      tokens: the most new tokens after a prompt.
      rounds: the cost of a round by its nodes.
      directory: the directory of the candidates.
      seed: draws parameters and batches.
    """

    target: LanguageModel
    texts: Sequence[str]
    prompts: Sequence[list[int]]
    chat: bool
    tokens: int
    rounds: RoundCost
    directory: Path
    seed: int


@dataclasses.dataclass(frozen=True)
class Measured:
    """A candidate after some of its training.

    Attributes:
      tokens: the tokens of its training.
      reached: for each place of a draft, the share of rounds that accept it.
      speedup: the expected speed-up at its best length.
      length: that length.
    """

    tokens: int
    reached: list[float]
    speedup: float
    length: int

    @property
    def acceptance_length(self) -> float:
        """The mean number of tokens of a round that drafts as many tokens as there are places."""
        return 1 + sum(self.reached)


def measure(trial: Trial, candidate: Candidate, draft, tokens: int) -> Measured:
    """The acceptance of a drafter on the held-out prompts, greedy, and its expected speed-up."""
    has_length = "num_speculative_tokens" in own_options(candidate.method)
    options: dict[str, Any] = {"num_speculative_tokens": MOST_DRAFTED} if has_length else {}
    generator = Generator(trial.target, candidate.method, draft, **options)
    stats = total([generator(prompt, max_new_tokens=trial.tokens).stats for prompt in trial.prompts])
    reached = [float(rate) for rate in stats.acceptance_rate_per_position[:MOST_DRAFTED]]
    speedup, length = trial.rounds.speedup(reached, candidate.cost(trial.target.config))
    return Measured(tokens, reached, speedup, length)


def hold_contest(
    trial: Trial, names: Sequence[str], steps: Callable[[str], int], say: Callable[[str], None] = lambda line: None
) -> dict[str, list[Measured]]:
    """The curve of each candidate: what was measured after each part of its training.

    The last candidate is trained to the end, and its curve is the longest.

    Args:
      names: the candidates, which need training.
      steps: the steps of a candidate's whole training.
      say: is told each measurement.
    """
    curves: dict[str, list[Measured]] = {name: [] for name in names}
    left = list(names)
    for rung, share in enumerate(_RUNGS):
        for name in left:
            drafter, tokens = train_candidate(trial, name, max(int(steps(name) * share), 1))
            measured = measure(trial, CANDIDATES[name], drafter, tokens)
            curves[name].append(measured)
            say(
                f"{name}: {measured.acceptance_length:.2f} tokens a round after {tokens / 1e6:.2f} M tokens of "
                f"training, {measured.speedup:.2f} times expected"
            )
        left.sort(key=lambda name: -curves[name][-1].speedup)
        dropped = left[max(-(-len(left) // 2), 1) :]
        left = left[: len(left) - len(dropped)]
        if dropped and rung + 1 < len(_RUNGS):
            say(f"{', '.join(dropped)} stopped: {left[0]} is ahead")
    return curves


def gain_of_doubling(curve: Sequence[Measured]) -> float | None:
    """The tokens a round that twice the training would add, by a line through the curve.

    Acceptance grows about linearly with the logarithm of the tokens. None for less than two points.
    """
    points = [point for point in curve if point.tokens]
    if len(points) < 2:
        return None
    doublings = np.log2([point.tokens for point in points])
    return float(np.polyfit(doublings, [point.acceptance_length for point in points], 1)[0])


def train_candidate(trial: Trial, name: str, steps: int) -> tuple[LanguageModel | Head, int]:
    """The drafter after ``steps`` steps in all, and their tokens. An earlier training goes on."""
    recipe = recipe_of(trial, name, steps)
    output = trial.directory / name
    log = output / "steps.json"
    if not (log.exists() and json.loads(log.read_text()) >= steps):
        train(recipe, trial.target, trial.texts, output / "training", measure=lambda module: None)
        log.write_text(json.dumps(steps))
    return load_drafter(str(output / "training"), trial.target), steps * recipe.batch * recipe.length


def recipe_of(trial: Trial, name: str, steps: int) -> Recipe:
    """The recipe of a candidate's training. A draft model is cut from the target first."""
    config = trial.target.config
    describe = CANDIDATES[name].recipe
    assert describe is not None
    table: dict[str, Any] = describe(config)
    if table["kind"] == "draft":
        start = trial.directory / name / "pruned"
        if not (start / "config.json").exists():
            sizes = Sizes(draft_layers(config), None, None, None)
            prune_target(trial.target, sizes, trial.texts, start, steps=0, seed=trial.seed)
        table |= {"head": {"start": str(start)}}
    length = min(table["length"], config.context - 1)
    settings = {"steps": steps, "every": min(steps, _EVERY), "seed": trial.seed, "length": length}
    return make_recipe(table | settings, f"boost: {name}")
