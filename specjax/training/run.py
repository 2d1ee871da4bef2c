"""Trains a drafter by a recipe, from the data to the saved drafter."""

import dataclasses
import json
import os
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from ..checkpoints.heads import save_head
from ..checkpoints.load import LanguageModel, save
from ..errors import RequestError
from ..heads import Head
from ..heads.base import HeadModule
from ..models.decoder import Decoder
from . import data
from .kinds import KINDS
from .loop import fit
from .on_policy import MeasuredAcceptance, Writer
from .recipe import Recipe
from .saving import CHECKPOINTS, lock, report_failure

M = TypeVar("M", bound=nnx.Module)

RECIPE = "recipe.json"
"""The file in the directory of a training that holds its recipe."""

_MAY_CHANGE = {"steps", "every", "prompts", "mesh"}
"""The keys that a resumed training may change."""

_PROMPT = 64
"""The number of tokens in a held-out prompt."""

_USES = 4
"""The number of steps that use a window written by a model. It costs more than a step."""


def train(
    recipe: Recipe,
    target: LanguageModel,
    paths: Sequence[str | Path] = (),
    output: str | Path = "run",
    *,
    measure: Callable[[HeadModule | Decoder], float | None] | None = None,
) -> LanguageModel | Head:
    """Trains a drafter, saves it in ``output`` and returns it.

    ``output`` also gets the log and the checkpoints. An interrupted training continues from them;
    see ``loop.fit``.

    Args:
      recipe: the options of the training.
      target: the model that the drafter drafts for. It must be on the recipe's mesh, if there is
        one.
      paths: text files and directories; by default the standard library.
      output: the directory. It is made if it is missing.
      measure: gives the acceptance length of the module at each checkpoint; by default
        ``MeasuredAcceptance`` on held-out text.

    Raises RequestError where the data or the recipe does not fit the target, or where ``output``
    holds another training; and the errors of ``loop.fit``.
    """
    output = Path(output)
    with lock(output):
        check(recipe, target)
        if KINDS[recipe.kind].reads_log:
            raise RequestError(f"kind {recipe.kind!r} learns from a log of rounds; name one with --log")
        separator = (target.config.eos_token_ids or (0,))[0]
        stream, held_out = data.read_streams(paths, target.tokenizer, separator)
        data.check_windows(stream, recipe.length)
        read_acceptance = measure or _make_measure(recipe, target, held_out)
        module = KINDS[recipe.kind].shape.make(recipe.head, target, stream, jax.random.key(recipe.seed))
        keep_recipe(recipe, f"{stream.size} tokens of checksum {zlib.crc32(stream.data)}", output)
        batches = Batches(recipe, stream, target, module)

        def report(step: int, module: HeadModule | Decoder) -> dict:
            length = read_acceptance(module)
            return {} if length is None else {"acceptance": round(length, 4)}

        trained = fit(
            module, make_loss(recipe), batches.read, recipe.optimizer.make(recipe.steps), recipe.steps, output,
            (cast_target(target.model),), report, recipe.every,
            mesh=recipe.mesh.make(), renew=batches.renew, describe=batches.describe,
        )  # fmt: skip
        with report_failure(output, "the drafter", "the last checkpoint is whole; "):
            return save_drafter(recipe, trained, target, output)


def check(recipe: Recipe, target: LanguageModel) -> None:
    """Raises RequestError where the target or the devices do not fit the recipe."""
    recipe.mesh.check_devices()
    context = target.config.context
    if recipe.length + 1 > context:
        raise RequestError(
            f"length {recipe.length} does not fit the target, whose context is {context} tokens; "
            f"{context - 1} is the most"
        )


def _make_measure(recipe: Recipe, target: LanguageModel, held_out: np.ndarray) -> MeasuredAcceptance:
    length = min(_PROMPT, target.config.context // 4)
    prompts = data.cut_prompts(held_out, recipe.prompts, length) if recipe.prompts else []
    return MeasuredAcceptance(target, recipe.kind, prompts)


def make_loss(recipe: Recipe) -> Callable[..., jax.Array]:
    """The recipe's loss as ``loss(module, (windows, step), target)``, computed in its dtype."""

    def loss(module: nnx.Module, batch: tuple, target: Decoder) -> jax.Array:
        window, step = batch
        key = jax.random.fold_in(jax.random.key(recipe.seed), step)
        return recipe.loss(cast(module, recipe.dtype), window, key, target)

    return loss


class Batches:
    """The batches of a recipe: windows cut from a stream, or windows written by a model."""

    def __init__(self, recipe: Recipe, stream: np.ndarray, target: LanguageModel, module: HeadModule | Decoder):
        self.recipe, self.stream = recipe, stream
        self.rows = np.empty((0, recipe.length + 1), np.int32)
        if recipe.on_policy:
            draft = KINDS[recipe.kind].wrap(module, target, recipe.kind)
            writes = draft if recipe.on_policy == "draft" and isinstance(draft, LanguageModel) else target
            self.writer = Writer(writes, stream, recipe.length)

    def read(self, step: int) -> tuple[np.ndarray, np.uint32]:
        """Windows int32 [batch, length + 1], and the step, from which the loss makes its key."""
        recipe = self.recipe
        if recipe.on_policy:
            windows = data.choose_rows(self.rows, recipe.seed, step, recipe.batch)
        else:
            windows = data.cut_windows(self.stream, recipe.seed, step, recipe.batch, recipe.length)
        return windows, np.uint32(step)

    def renew(self, step: int, module: nnx.Module) -> None:
        """Writes the windows for the steps from ``step`` to the next checkpoint."""
        recipe = self.recipe
        if recipe.on_policy and step < recipe.steps:
            count = -(-recipe.batch * recipe.every // _USES)
            self.rows = self.writer(count, recipe.seed + step, module if recipe.on_policy == "draft" else None)

    def describe(self, step: int) -> str:
        """Describes the batch of a step, for error messages."""
        recipe = self.recipe
        if recipe.on_policy:
            return f", in a batch that the {recipe.on_policy} wrote"
        starts = data.choose_starts(self.stream.size, recipe.seed, step, recipe.batch, recipe.length)
        return f", in the batch of windows from tokens {', '.join(map(str, starts))} of the data"


def cast_target(model: Decoder) -> Decoder:
    """The target, on CPU in float32, because CPUs multiply 16-bit numbers slowly."""
    return cast(model, "float32") if jax.default_backend() == "cpu" else model


def cast(module: M, dtype: str) -> M:
    """The module with its floating-point parameters in ``dtype``."""
    graph, state = nnx.split(module)
    convert = lambda x: x.astype(dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x
    return nnx.merge(graph, jax.tree.map(convert, state))


def keep_recipe(recipe: Recipe, read: str, output: Path) -> None:
    """Writes ``recipe.json``. ``read`` describes the data.

    Raises RequestError where ``output`` holds checkpoints of another recipe, of other data, or of
    an unknown recipe.
    """
    content = dataclasses.asdict(recipe) | {"data": read}
    given = json.loads(json.dumps(content))
    path, checkpoints = output / RECIPE, output / CHECKPOINTS
    if checkpoints.exists() and any(checkpoints.iterdir()):
        _check_recipe(given, path)
    with report_failure(output, RECIPE):
        half = path.with_suffix(".half")
        half.write_text(json.dumps(given, indent=1) + "\n")
        os.replace(half, path)


def _check_recipe(given: dict, path: Path) -> None:
    """Raises RequestError where the recipe at ``path`` is unreadable or not the given one."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        found = None
    if not isinstance(found, dict):
        raise RequestError(f"{path.parent} holds checkpoints, but no {RECIPE} with their recipe; name another --output")
    for key in given.keys() - _MAY_CHANGE:
        if found.get(key) != given[key]:
            raise RequestError(
                f"{path.parent} holds a run with {key} {found.get(key)!r}, not {given[key]!r}; name another --output"
            )


def save_drafter(
    recipe: Recipe, module: HeadModule | Decoder, target: LanguageModel, output: Path
) -> LanguageModel | Head:
    """Writes the drafter to ``output`` in the target's dtype and returns it."""
    dtype, kind = str(target.model.embed[...].dtype), KINDS[recipe.kind]
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
