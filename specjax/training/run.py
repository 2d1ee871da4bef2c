"""Trains a drafter by a recipe, from the data to the saved drafter."""

import dataclasses
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from ..checkpoints.heads import save_head
from ..checkpoints.load import LanguageModel, save
from ..core.checks import shorten
from ..core.read_files import read_json
from ..errors import RequestError
from ..heads import Head
from ..heads.base import HeadModule
from ..kernels.cpu.processor import matrix_extensions
from ..models.decoder import Decoder
from ..text.generator import Generator
from . import data
from .kept_features import KeptBatches
from .kinds import KINDS
from .loop import BatchSource, fit
from .measured_acceptance import MeasuredAcceptance
from .on_policy import Writer
from .online.batches import OnlineBatches
from .recipe import Recipe
from .saving import CHECKPOINTS, lock, report_failure
from .sources import Source

M = TypeVar("M", bound=nnx.Module)

RECIPE = "recipe.json"
"""The file in the directory of a training that holds its recipe."""

HEALING = ("heal.toml", "pruned")
"""The recipe and the directory that ``tools.prune`` writes beside a training."""

_MAY_CHANGE = {"steps", "every", "prompts", "mesh"}
"""The keys that a resumed training may change."""

_PROMPT = 64
"""The number of tokens in a held-out prompt."""

_FAST_ON_CPU = {"amx_bf16", "avx512_bf16"}
"""The instructions with which a CPU multiplies bfloat16 faster than float32."""

_USES = 4
"""The number of steps that use a window written by a model. It costs more than a step."""


def train(
    recipe: Recipe,
    target: LanguageModel,
    paths: Sequence[str | Path | Source] = (),
    output: str | Path = "run",
    *,
    measure: Callable[[HeadModule | Decoder], float | None] | None = None,
    earlier: Sequence[LanguageModel] = (),
) -> LanguageModel | Head:
    """Trains a drafter, saves it in ``output`` and returns it.

    ``output`` also gets the log and the checkpoints. An interrupted training continues from them;
    see ``loop.fit``.

    Args:
      target: the model that the drafter drafts for. It must be on the recipe's mesh, if there is
        one.
      paths: files, directories or other sources of text; by default those of the recipe, or else
        the standard library.
      output: the directory. It is made if it is missing.
      measure: returns the acceptance length of the module at each checkpoint; by default
        ``MeasuredAcceptance`` on held-out text.
      earlier: for kind draft, trained drafts. Only tokens count that all of them miss, see
        ``boost``.

    Raises RequestError where the data or the recipe does not fit the target, where ``output`` holds
    another training, and for kind boost, which ``boost`` trains; and the errors of ``loop.fit``.
    """
    output = Path(output)
    check_run(recipe.kind, output)
    with lock(output):
        # 1. Checks, data and the untrained drafter.
        check(recipe, target)
        if KINDS[recipe.kind].reads_log:
            raise RequestError(f"kind {recipe.kind!r} learns from a log of rounds; name one with --log")
        separator = (target.config.eos_token_ids or (0,))[0]
        mixture, held_out = data.read_streams(paths or recipe.data, target.tokenizer, separator)
        mixture.check_windows(recipe.length)
        read_acceptance = measure or _make_measure(recipe, target, held_out)
        module = KINDS[recipe.kind].shape.make(recipe.head, target, mixture.learnt, jax.random.key(recipe.seed))
        keep_recipe(recipe, mixture.summarize(), output, len(earlier))
        # 2. Batches, and the arguments of the loss that are not trained.
        known = cast_target(target.model)
        if KINDS[recipe.kind].records:
            batches = OnlineBatches(recipe, mixture, target, module)
        elif recipe.features:
            batches = KeptBatches(recipe, mixture, known, module, output)
        else:
            batches = Batches(recipe, mixture, target, module)
        extra: tuple[Any, ...] = (known,)
        if earlier:
            extra += (tuple(cast_target(draft.model) for draft in earlier),)

        def report(step: int, module: HeadModule | Decoder) -> dict:
            length = read_acceptance(module)
            return {} if length is None else {"acceptance": round(length, 4)}

        # 3. The training.
        trained = fit(
            module, make_loss(recipe), BatchSource(batches.read, batches.renew, batches.describe),
            recipe.optimizer.make(recipe.steps), recipe.steps, output, extra, report, recipe.every,
            mesh=recipe.mesh.make(),
        )  # fmt: skip
        with report_failure(output, "the drafter", "the last checkpoint is whole; "):
            return save_drafter(recipe, trained, target, output)


def check(recipe: Recipe, target: LanguageModel) -> None:
    """Raises RequestError where the target or the devices do not fit the recipe."""
    if recipe.kind == "boost":
        raise RequestError("a recipe of kind boost trains several drafts; call specjax.training.boost_tuning.boost")
    target.config.refuse_encoder("training")
    recipe.mesh.check_devices()
    context = target.config.context
    if recipe.length + 1 > context:
        raise RequestError(
            f"length {recipe.length} does not fit the target, whose context is {context} tokens; "
            f"{context - 1} is the most"
        )


def _make_measure(recipe: Recipe, target: LanguageModel, held_out: data.Mixture) -> MeasuredAcceptance:
    length = min(_PROMPT, target.config.context // 4)
    prompts = held_out.cut_prompts(recipe.prompts, length) if recipe.prompts else []
    return MeasuredAcceptance(target, recipe.kind, prompts)


def make_loss(recipe: Recipe) -> Callable[..., jax.Array]:
    """The recipe's loss as ``loss(module, (windows, learnt, step), target)``.

    It is computed in the recipe's dtype. Further arguments are passed on to the loss of the kind.
    """

    def loss(module: nnx.Module, batch: tuple, target: Decoder, *more) -> jax.Array:
        window, learnt, step = batch
        key = jax.random.fold_in(jax.random.key(recipe.seed), step)
        return recipe.loss(cast(module, recipe.dtype), window, learnt.astype(jnp.float32), key, target, *more)

    return loss


class Batches:
    """The batches of a recipe: windows cut from streams, or windows written by a model."""

    def __init__(self, recipe: Recipe, mixture: data.Mixture, target: LanguageModel, module: HeadModule | Decoder):
        self.recipe = recipe
        self.mixture = mixture
        self.written = (np.empty((0, recipe.length + 1), np.int32), np.empty((0, recipe.length + 2), bool))
        if recipe.on_policy:
            draft = KINDS[recipe.kind].wrap(module, target, recipe.kind)
            writes = draft if recipe.on_policy == "draft" and isinstance(draft, LanguageModel) else target
            self.writer = Writer(Generator(writes, "none"), mixture, recipe.length, recipe.temperature)

    def read(self, step: int) -> tuple[np.ndarray, np.ndarray, np.uint32]:
        """The batch of a step, see ``data.Mixture.cut``, and the step for the key of the loss."""
        recipe = self.recipe
        if recipe.on_policy:
            rows = data.choose_rows(len(self.written[0]), recipe.seed, step, recipe.batch)
            windows, learnt = (part[rows] for part in self.written)
        else:
            windows, learnt = self.mixture.cut(recipe.seed, step * recipe.batch, recipe.batch, recipe.length)
        return windows, learnt, np.uint32(step)

    def renew(self, step: int, module: nnx.Module) -> None:
        """Writes the windows for the steps from ``step`` to the next checkpoint."""
        recipe = self.recipe
        if recipe.on_policy and step < recipe.steps:
            count = -(-recipe.batch * recipe.every // _USES)
            self.written = self.writer(count, recipe.seed + step, module if recipe.on_policy == "draft" else None)

    def describe(self, step: int) -> str:
        """Describes the batch of a step, for error messages."""
        recipe = self.recipe
        if recipe.on_policy:
            return f", in a batch that the {recipe.on_policy} wrote"
        starts = self.mixture.describe(recipe.seed, step * recipe.batch, recipe.batch, recipe.length)
        return f", in the batch of windows from tokens {starts} of the data"


def cast_target(model: Decoder) -> Decoder:
    """The target, in float32 on a CPU that multiplies 16-bit numbers slowly."""
    is_slow = jax.default_backend() == "cpu" and not _FAST_ON_CPU.intersection(matrix_extensions())
    return cast(model, "float32") if is_slow else model


def cast(module: M, dtype: str) -> M:
    """The module with its floating-point parameters in ``dtype``."""
    graph, state = nnx.split(module)

    def convert(x):
        return x.astype(dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x

    return nnx.merge(graph, jax.tree.map(convert, state))


def keep_recipe(recipe: Recipe, read: str, output: Path, earlier: int = 0) -> None:
    """Writes ``recipe.json``.

    ``read`` describes the data, ``earlier`` is the number of earlier drafts.

    Raises RequestError where ``output`` holds checkpoints of another recipe, of other data, or of
    an unknown recipe.
    """
    content = dataclasses.asdict(recipe) | {"data": read} | ({"earlier": earlier} if earlier else {})
    fields = json.loads(json.dumps(content))
    path = output / RECIPE
    checkpoints = output / CHECKPOINTS
    if checkpoints.exists() and any(checkpoints.iterdir()):
        recorded = _read_recipe_in(output, CHECKPOINTS)
        for key in (fields.keys() | recorded.keys()) - _MAY_CHANGE:
            _check_key(output, key, recorded.get(key), fields.get(key))
    with report_failure(output, RECIPE):
        half = path.with_suffix(".half")
        half.write_text(json.dumps(fields, indent=1) + "\n")
        os.replace(half, path)


def check_run(kind: str, output: Path) -> None:
    """Raises RequestError where ``output`` holds files, but no training of this kind.

    The training would overwrite them. Hidden files do not count, nor do ``HEALING``.
    """
    if jax.process_index() or not os.path.exists(output):
        return
    try:
        others = [name for name in sorted(os.listdir(output)) if name not in HEALING and not name.startswith(".")]
    except OSError as error:
        raise RequestError(f"{output}: cannot be used ({error.strerror}); name another --output") from None
    if others:
        _check_key(output, "kind", _read_recipe_in(output, others[0]).get("kind"), kind)


def _read_recipe_in(directory: Path, held: str) -> dict:
    """The recipe in a directory that also holds ``held``. Raises RequestError without one."""
    try:
        recipe = read_json(directory / RECIPE, RECIPE)
    except RequestError:
        recipe = None
    if not isinstance(recipe, dict):
        raise RequestError(f"{directory} holds {held}, but no {RECIPE} of a training; name another --output")
    return recipe


def _check_key(directory: Path, key: str, old, new) -> None:
    if old != new:
        raise RequestError(
            f"{directory} holds a run with {key} {shorten(old)}, not {shorten(new)}; name another --output"
        )


def save_drafter(
    recipe: Recipe, module: HeadModule | Decoder, target: LanguageModel, output: Path
) -> LanguageModel | Head:
    """Writes the drafter to ``output`` in the target's dtype and returns it."""
    dtype = str(target.model.embed[...].dtype)
    kind = KINDS[recipe.kind]
    module = jax.tree.map(jnp.asarray, cast(module, dtype))
    if isinstance(module, HeadModule):
        module.config = module.config.with_dtype(dtype)
    else:
        module.config = module.config.replace(dtype=dtype)
    drafter = kind.wrap(module, target, str(output))
    if isinstance(drafter, Head):
        save_head(drafter, output)
    else:
        save(drafter, output)
    return drafter
