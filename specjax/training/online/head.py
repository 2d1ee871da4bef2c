"""A head that learns between the calls of its generator, beside a training of the target."""

import numpy as np

from ...core.feature_record import FeatureRecording
from ...errors import NumericsError, RequestError
from ...heads import Eagle3Head
from ...text.drafts import module_of
from ...text.generator import Generator
from ..recipe import Recipe, make_recipe
from ..run import cast_target
from .batches import choose_windows
from .feature_windows import RecordedFeatures
from .head_training import HeadTraining


class OnlineHead:
    """Trains the EAGLE-3 head of a generator on the features that the generator's calls record.

        head = OnlineHead(generator)
        results = generator(prompts, temperature=1.0)
        losses = head.learn(steps=8)  # the next call drafts with the new weights

    Verification computes the features anyway, so a step runs the head alone and no forward of the
    target. ``Generator.update`` drops the windows of the old target.

    Args:
      generator: decodes with the method "eagle3". Its calls record from now on.
      recipe: a recipe of kind online; by default that of the kind. Its keys ``loss``,
        ``optimizer``, ``steps``, ``batch``, ``length``, ``seed`` and ``dtype`` count; the schedule
        of the rate ends after ``steps``.
      tokens: the size of the record on the device, for each row.
      most: the number of newest windows that stay on the host.

    Raises RequestError for another method or kind of recipe.
    """

    def __init__(self, generator: Generator, recipe: Recipe | None = None, *, tokens: int = 512, most: int = 256):
        self.recipe = recipe = make_recipe({"kind": "online"}, "recipe online") if recipe is None else recipe
        if recipe.kind != "online":
            raise RequestError(f"a head learns online by a recipe of kind 'online', not {recipe.kind!r}")
        module = module_of(generator.drafts[0]) if generator.method == "eagle3" else None
        if not isinstance(module, Eagle3Head):
            raise RequestError(f"a head learns online with method 'eagle3', not {generator.method!r}")
        if generator.session.log is not None:
            raise RequestError("the generator records already; make another one for this head")
        self.generator = generator
        self.step = 0
        self.recorded = generator.session.log = RecordedFeatures(recipe.length, FeatureRecording(tokens), most)
        self._training = HeadTraining(module, recipe)

    def learn(self, steps: int) -> list[float]:
        """Trains ``steps`` steps on the recorded windows, and hands the head to the generator.

        Returns the loss of each step. Raises RequestError where nothing is recorded, and
        NumericsError where a loss is not finite; the generator then keeps its head.
        """
        target = cast_target(self.generator.target.model)
        losses = []
        for _ in range(steps):
            batch = (*choose_windows(self.recorded, self.recipe, self.step), np.uint32(self.step))
            losses.append(self._training.step(batch, target))
            self.step += 1
        if not np.isfinite(losses).all():
            raise NumericsError(f"loss {losses} of the head is not finite; try a lower rate")
        self.generator.update(draft=self._training.head)
        return losses
