"""The batches of a recipe of kind online: features recorded while the target continues texts."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from ...checkpoints.load import LanguageModel
from ...heads import Head
from ...heads.base import HeadModule
from ...text.generator import Generator
from .. import data
from ..on_policy import Writer
from ..recipe import Recipe
from .feature_windows import RecordedFeatures, RecordedWindow

_USES = 4
"""The number of steps that use a window."""


class OnlineBatches:
    """Batches of windows that the target wrote, with the head as its drafter.

    The head that drafts is the one of the last checkpoint.
    """

    def __init__(self, recipe: Recipe, mixture: data.Mixture, target: LanguageModel, module: nnx.Module):
        assert isinstance(module, HeadModule)  # ``OnlineShape`` makes heads
        self.recipe = recipe
        self.recorded = RecordedFeatures(recipe.length)
        generator = Generator(target, module.config.kind, draft=Head(module, module.config, recipe.kind))
        generator.session.log = self.recorded
        self.writer = Writer(generator, mixture, recipe.length, recipe.temperature)

    def read(self, step: int) -> tuple[RecordedWindow, np.ndarray, np.uint32]:
        """The windows of a step, the marks of their learnt tokens, and the step."""
        return *choose_windows(self.recorded, self.recipe, step), np.uint32(step)

    def renew(self, step: int, module: nnx.Module) -> None:
        """Records the windows for the steps from ``step`` to the next checkpoint."""
        recipe = self.recipe
        if step < recipe.steps:
            # A copy, because the next step of the training takes over the buffers.
            self.writer.generator.update(draft=jax.tree.map(jnp.copy, module))
            self.recorded.windows.clear()
            self.writer(-(-recipe.batch * recipe.every // _USES), recipe.seed + step)

    def describe(self, step: int) -> str:
        """Describes the batch of a step, for error messages."""
        return ", in a batch that the target wrote"


def choose_windows(recorded: RecordedFeatures, recipe: Recipe, step: int) -> tuple[RecordedWindow, np.ndarray]:
    """The windows of a step, and the marks of their learnt tokens, bool [W, S + 2]."""
    rows = data.choose_rows(len(recorded.windows), recipe.seed, step, recipe.batch) if recorded.windows else np.zeros(0)
    return recorded.take(rows)
