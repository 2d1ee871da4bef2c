"""The steps of the trainings of a boost, from its texts and its time."""

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ...errors import RequestError
from ...models.config import ModelConfig
from ...training.loop import LOG
from ...training.run import train
from .candidates import CANDIDATES
from .contest import Trial, recipe_of

PASSES = 3
"""The times that a training reads its texts. More passes help little."""

LEAST_STEPS = 60
"""The steps below which a training says nothing about its drafter."""

GATHERING, TRAINING = 0.4, 0.4
"""The shares of the time for writing texts and for training. Measurements take the rest."""

_TIMED = 4
"""The steps that are timed. The first, which is compiled, does not count."""


def _full_trainings(count: int) -> float:
    """The most steps of a contest of ``count`` candidates, over those of one whole training."""
    return 1 if count == 1 else 0.6 * count


def time_step(trial: Trial, name: str) -> float:
    """The seconds of a step of a candidate's training, from a few steps that are thrown away."""
    recipe = recipe_of(trial, name, _TIMED)
    with tempfile.TemporaryDirectory() as scratch:
        train(recipe, trial.target, trial.texts, scratch, measure=lambda module: None)
        lines = (Path(scratch) / LOG).read_text().splitlines()
    speeds = [json.loads(line)["tokens_per_second"] for line in lines[1:]]
    return recipe.batch * recipe.length / float(np.median(speeds))


def check_tokens(names: Sequence[str], config: ModelConfig, tokens: int, mend: str) -> None:
    """Raises RequestError where texts of ``tokens`` tokens are too few to train a candidate.

    The message has the number of tokens that would do, and ends with ``mend``.
    """
    for name in names:
        if (describe := CANDIDATES[name].recipe) is None:
            continue
        table = describe(config)
        window = table["batch"] * min(table["length"], config.context - 1)
        least = -(-LEAST_STEPS * window // PASSES)
        if tokens < least:
            raise RequestError(f"{tokens:,} tokens are too few to train {name}, which needs {least:,}; {mend}")


def plan_steps(trial: Trial, names: Sequence[str], tokens: int, seconds: float | None) -> dict[str, int]:
    """The steps of each candidate's whole training.

    Args:
      tokens: the tokens of the texts, see ``check_tokens``.
      seconds: the time for all trainings; None for no limit.

    Raises RequestError where the time is too short to train a candidate. The message has the hours
    that are missing.
    """
    steps = {}
    for name in names:
        recipe = recipe_of(trial, name, 1)
        steps[name] = PASSES * tokens // (recipe.batch * recipe.length)
        if seconds is not None:
            step = time_step(trial, name)
            trainings = _full_trainings(len(names))
            steps[name] = min(steps[name], int(seconds / trainings / step))
            if steps[name] < LEAST_STEPS:
                hours = LEAST_STEPS * step * trainings / TRAINING / 3600
                raise RequestError(f"the time is too short to train {name}; give --hours {hours:.1f} or more")
    return steps
