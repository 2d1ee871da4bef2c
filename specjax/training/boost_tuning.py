"""Collective boost-tuning: several draft models, each trained where the earlier ones fail.

The method ``merged`` drafts with them.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from ..checkpoints.load import LanguageModel
from .kinds.boost import BoostShape
from .recipe import Recipe
from .run import train
from .saving import lock
from .sources import Source


def boost(
    recipe: Recipe, target: LanguageModel, paths: Sequence[str | Path | Source] = (), output: str | Path = "run"
) -> list[LanguageModel]:
    """Trains the drafts of a recipe of kind boost one after another, and returns them.

    The m-th draft is a training of kind draft in the directory ``output``/m, with the seed
    ``recipe.seed`` + m - 1. A place of the text counts for it where none of the earlier drafts has
    the target's likeliest token as its own (SpecInfer, 2305.09781, section 3). The paper leaves out
    whole samples instead.

    An interrupted call continues with the draft that it was training.

    Args:
      recipe, target, paths: as for ``run.train``.
      output: the directory of the drafts.

    Raises the errors of ``run.train``.
    """
    shape = recipe.head
    output = Path(output)
    assert isinstance(shape, BoostShape)
    drafts: list[LanguageModel] = []
    with lock(output):
        for m in range(shape.drafts):
            own = dataclasses.replace(recipe, kind="draft", head=shape.one(), seed=recipe.seed + m)
            trained = train(own, target, paths, output / str(m + 1), earlier=drafts)
            assert isinstance(trained, LanguageModel)
            drafts.append(trained)
    return drafts
