"""Cuts a draft model out of a target and heals it: its weights learn to do without the rest."""

from collections.abc import Sequence
from pathlib import Path

from ...checkpoints.load import LanguageModel, save
from ...core.checks import check_known
from ...training import data
from ...training.recipe import read_recipe
from ...training.run import HEALING, train
from .cut import Sizes, prune, prune_config
from .importance import measure_importance
from .masks import learn_masks

MEASURES = ("activations", "masks")
"""The sources of the importance of parts: measured activations, or learned masks."""

RECIPE, PRUNED = HEALING
"""The recipe of the healing, and the folder of the model before it, in the output directory."""

_WINDOWS = 32
"""The number of windows on which importance is measured."""

_LENGTH = 256
"""The number of tokens of such a window."""

_HEAL = """# Continues an interrupted healing: specjax train --recipe {recipe} --output {output}
kind = "draft"
model = "{model}"
steps = {steps}
seed = {seed}
length = {length}

[head]
start = "{start}"

[loss]
forward_kl = 1.0
"""


def prune_target(
    target: LanguageModel,
    sizes: Sizes,
    paths: Sequence[str | Path] = (),
    output: str | Path = "pruned",
    *,
    steps: int = 200,
    seed: int = 0,
    importance: str = "activations",
) -> LanguageModel:
    """Writes a draft model of these sizes into ``output``, and returns it.

    Args:
      sizes: the sizes that stay.
      paths: the texts on which to measure importance and to heal, as in ``run.train``.
      output: the directory of the draft, and of its training.
      steps: the steps of distillation (forward KL, DistillSpec, 2310.08461); 0 for none.
      seed: draws windows of text, and masks.
      importance: one of ``MEASURES``.

    Raises RequestError for sizes and texts that do not fit, and the errors of ``run.train``.
    """
    check_known("importance", importance, MEASURES)
    # 1. The importance of parts on a text.
    output = Path(output)
    length = min(_LENGTH, target.config.context - 1)
    mixture, _ = data.read_streams(paths, target.tokenizer, (target.config.eos_token_ids or (0,))[0])
    mixture.check_windows(length)
    windows, _ = mixture.cut(seed, 0, _WINDOWS, length)
    goal = prune_config(target.config, sizes)
    parts = measure_importance(target.model, windows)
    if importance == "masks":
        parts = learn_masks(target.model, parts, windows, goal, seed=seed)
    # 2. The cut.
    module = prune(target.model, parts, sizes)
    draft = LanguageModel(module, module.config, target.tokenizer, str(output))
    if not steps:
        save(draft, output)
        return draft
    # 3. The healing.
    save(draft, output / PRUNED)
    text = _HEAL.format(
        recipe=output / RECIPE, output=output, model=target.name, steps=steps, seed=seed, length=length,
        start=output / PRUNED,
    )  # fmt: skip
    (output / RECIPE).write_text(text)
    healed = train(read_recipe(output / RECIPE), target, paths, output)
    assert isinstance(healed, LanguageModel)
    return healed
