"""The steps of the trainings of a boost, from its texts and its time."""

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ...errors import RequestError
from ...training.loop import LOG
from ...training.run import train
from .contest import Trial, recipe_of

PASSES = 3
"""The times that a training reads its texts. More passes help little."""

LEAST_STEPS = 60
"""The steps below which a training says nothing about its drafter."""

_TIMED = 4
"""The steps that are timed. The first, which is compiled, does not count."""

_CONTEST = 1.2
"""The steps of all trainings of a contest of two, over those of the longest one."""


def time_step(trial: Trial, name: str) -> float:
    """The seconds of a step of a candidate's training, from a few steps that are thrown away."""
    recipe = recipe_of(trial, name, _TIMED)
    with tempfile.TemporaryDirectory() as scratch:
        train(recipe, trial.target, trial.texts, scratch, measure=lambda module: None)
        lines = (Path(scratch) / LOG).read_text().splitlines()
    speeds = [json.loads(line)["tokens_per_second"] for line in lines[1:]]
    return recipe.batch * recipe.length / float(np.median(speeds))


def plan_steps(trial: Trial, names: Sequence[str], tokens: int, seconds: float | None) -> dict[str, int]:
    """The steps of each candidate's whole training.

    Args:
      tokens: the tokens of the texts.
      seconds: the time for all trainings; None for no limit.

    Raises RequestError where texts or time are too few for one candidate; it says what is needed.
    """
    steps = {}
    for name in names:
        recipe = recipe_of(trial, name, 1)
        window = recipe.batch * recipe.length
        steps[name] = PASSES * tokens // window
        if steps[name] < LEAST_STEPS:
            least = LEAST_STEPS * window // PASSES
            raise RequestError(
                f"{tokens:,} tokens of texts are too few to train {name}; give --tokens {least:,} or more, or more data"
            )
        if seconds is not None:
            step = time_step(trial, name)
            share = seconds / (1 if len(names) == 1 else _CONTEST * len(names) / 2)
            steps[name] = min(steps[name], int(share / step))
            if steps[name] < LEAST_STEPS:
                hours = (LEAST_STEPS * step - share) / 3600
                raise RequestError(f"the time is too short to train {name}; give {max(hours, 0.1):.1f} hours more")
    return steps
