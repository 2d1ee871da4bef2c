"""Trains a drafter by a recipe: data, module, loss, loop, and what is left in the directory in the end."""

import dataclasses
import json
import os
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from ..checkpoints.load import LanguageModel, save
from ..errors import RequestError
from ..heads import Head
from ..models.decoder import Decoder
from . import data
from .checkpoints import CHECKPOINTS, alone_in, told
from .kinds import KINDS
from .loop import fit
from .on_policy import Acceptance, Writer
from .recipe import Recipe

RECIPE = "recipe.json"
"""The file in a run's directory that says by which recipe it was trained."""

_MAY_CHANGE = {"steps", "every", "prompts", "mesh"}
"""What a run that is resumed may have otherwise than the one that was interrupted."""

_PROMPT = 64
_USES = 4
"""How often a window that a model wrote is trained on: writing it costs more than that."""


def train(
    recipe: Recipe,
    target: LanguageModel,
    paths: Sequence[str | Path] = (),
    output: str | Path = "run",
    *,
    measure: Callable[[nnx.Module], float | None] | None = None,
) -> LanguageModel | Head:
    """The trained drafter, which is also saved to ``output``, beside the log and the checkpoints of the run.

    A run that was interrupted goes on where it stopped, see ``loop.fit``.

    Args:
      recipe: what to train and how.
      target: the model it drafts for, on the recipe's mesh if that has more than one device.
      paths: text files and directories; by default the standard library.
      output: the directory; made if need be.
      measure: gives the acceptance length of a module at each checkpoint; by default ``on_policy.Acceptance`` on held-out text.

    Raises RequestError for data or a recipe that do not fit the target; the rest is as in ``loop.fit``.
    """
    with alone_in(Path(output)):
        return _train(recipe, target, paths, Path(output), measure)


def _train(recipe: Recipe, target: LanguageModel, paths, output: Path, measure) -> LanguageModel | Head:
    check(recipe, target)
    stream, held = data.streams(paths, target.tokenizer, (target.config.eos_token_ids or (0,))[0])
    data.check_windows(stream, recipe.length)
    if measure is None:
        prompts = data.prompts_of(held, recipe.prompts, min(_PROMPT, target.config.context // 4)) if recipe.prompts else []
        measure = Acceptance(target, recipe.kind, prompts)
    module = KINDS[recipe.kind].shape.make(recipe.head, target, stream, jax.random.key(recipe.seed))
    _keep_recipe(recipe, stream, output)
    text = Text(recipe, stream, target, module)

    def report(step: int, module: nnx.Module) -> dict:
        found = measure(module)
        return {} if found is None else {"acceptance": round(found, 4)}

    trained = fit(
        module, loss_of(recipe), text.batch, recipe.optimizer.rule(recipe.steps), recipe.steps, output, (quick(target.model),), report,
        recipe.every, mesh=mesh_of(recipe), renew=text.renew, name=text.name,
    )  # fmt: skip
    with told(output, "the drafter", "the last checkpoint is whole; "):
        return _saved(recipe, trained, target, output)


def loss_of(recipe: Recipe) -> Callable:
    """``loss(module, (windows, step), target)`` of the recipe, computed in its dtype."""

    def loss(module: nnx.Module, batch: tuple, target: Decoder) -> jax.Array:
        window, step = batch
        key = jax.random.fold_in(jax.random.key(recipe.seed), step)
        return recipe.loss(cast(module, recipe.dtype), window, key, target)

    return loss


class Text:
    """The batches of a recipe: windows of a stream, or what a model writes."""

    def __init__(self, recipe: Recipe, stream: np.ndarray, target: LanguageModel, module: nnx.Module):
        self.recipe, self.stream = recipe, stream
        self.rows = None
        if recipe.on_policy:
            writer = (
                target if recipe.on_policy == "target" else dataclasses.replace(target, model=module, config=module.config, generators={})
            )
            self.writer = Writer(writer, stream, recipe.length)

    def batch(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Windows int32 [batch, length + 1] and the step, from which the loss makes its key."""
        recipe = self.recipe
        if recipe.on_policy:
            windows = data.rows_at(self.rows, recipe.seed, step, recipe.batch)
        else:
            windows = data.batch_at(self.stream, recipe.seed, step, recipe.batch, recipe.length)
        return windows, np.uint32(step)

    def renew(self, step: int, module: nnx.Module) -> None:
        """At ``step``, what is written for the steps until the next checkpoint."""
        recipe = self.recipe
        if recipe.on_policy and step < recipe.steps:
            count = -(-recipe.batch * recipe.every // _USES)
            self.rows = self.writer(count, recipe.seed + step, module if recipe.on_policy == "draft" else None)

    def name(self, step: int) -> str:
        recipe = self.recipe
        if recipe.on_policy:
            return f", a batch that the {recipe.on_policy} wrote"
        starts = data.starts_at(self.stream.size, recipe.seed, step, recipe.batch, recipe.length)
        return f", in the batch of windows from tokens {', '.join(map(str, starts))} of the data"


def check(recipe: Recipe, target: LanguageModel) -> None:
    """Raises RequestError where the target or the devices do not fit the recipe."""
    check_devices(recipe)
    if recipe.length + 1 > target.config.context:
        raise RequestError(f"length {recipe.length} does not fit the target, whose context is {target.config.context} tokens")


def check_devices(recipe: Recipe) -> None:
    """Raises RequestError where there are fewer devices than in the recipe's mesh."""
    devices = recipe.mesh.data * recipe.mesh.model
    if devices > jax.device_count():
        raise RequestError(f"the recipe's mesh needs {devices} devices and there are {jax.device_count()}; lower data or model in [mesh]")


def mesh_of(recipe: Recipe):
    """The recipe's devices, None for a single one."""
    from ..parallel import make_mesh

    shape = recipe.mesh
    return None if shape.data == shape.model == 1 else make_mesh(shape.data, shape.model)


def quick(model: Decoder) -> Decoder:
    """The target as training reads it: on CPU, which has no fast product of halves, in float32."""
    return cast(model, "float32") if jax.default_backend() == "cpu" else model


def cast(module: nnx.Module, dtype: str) -> nnx.Module:
    """The module with its floating-point parameters in ``dtype``."""
    graph, state = nnx.split(module)
    return nnx.merge(graph, jax.tree.map(lambda x: x.astype(dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x, state))


def _keep_recipe(recipe: Recipe, stream: np.ndarray, output: Path) -> None:
    """Writes the recipe down; raises RequestError where the directory holds a run of another one, or on other data, or of nobody knows what."""
    given = json.loads(json.dumps(dataclasses.asdict(recipe) | {"data": f"{stream.size} tokens of checksum {zlib.crc32(stream)}"}))
    path = output / RECIPE
    begun = (output / CHECKPOINTS).exists() and any((output / CHECKPOINTS).iterdir())
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        found = None
    if begun and not isinstance(found, dict):
        raise RequestError(f"{output} holds checkpoints and no {RECIPE} that says of what; name another --output")
    for key in given.keys() - _MAY_CHANGE if begun else ():
        if found.get(key) != given[key]:
            raise RequestError(f"{output} holds a run with {key} {found.get(key)!r}, not {given[key]!r}; name another --output")
    with told(output, RECIPE):
        half = path.with_suffix(".half")
        half.write_text(json.dumps(given, indent=1) + "\n")
        os.replace(half, path)


def _saved(recipe: Recipe, module: nnx.Module, target: LanguageModel, output: Path) -> LanguageModel | Head:
    """The drafter in the target's dtype, written to ``output``."""
    dtype = str(target.model.embed[...].dtype)
    whole = jax.tree.map(jnp.asarray, cast(module, dtype))
    if recipe.kind == "draft":
        whole.config = whole.config.replace(dtype=dtype)
        draft = LanguageModel(whole, whole.config, target.tokenizer, str(output))
        save(draft, output)
        return draft
    from ..checkpoints.heads import save_head

    whole.config = whole.config.with_dtype(dtype)
    head = Head(whole, whole.config, str(output))
    save_head(head, output)
    return head
