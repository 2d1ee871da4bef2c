"""Trains a draft model from a log of rounds, from the log to the saved draft."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import numpy as np
from flax import nnx

from ...checkpoints.load import LanguageModel
from ...errors import RequestError
from ...heads import Head
from ...heads.base import HeadModule
from ...models.decoder import Decoder
from ...text.feedback_log import hash_weights, identify
from .. import data
from ..loop import BatchSource, fit
from ..measured_acceptance import MeasuredAcceptance
from ..recipe import Recipe
from ..run import cast, cast_target, check, check_run, keep_recipe, save_drafter
from ..saving import lock, report_failure
from ..sources import Source
from .rounds import Rounds, read_log
from .windows import FeedbackBatch, LoggedWindows, cut_logged


def train_from_log(
    recipe: Recipe,
    target: LanguageModel,
    log: str | Path,
    paths: Sequence[str | Path | Source] = (),
    output: str | Path = "run",
    *,
    measure: Callable[[HeadModule | Decoder], float | None] | None = None,
) -> LanguageModel | Head:
    """Trains a draft from a log, saves it in ``output`` and returns it; see ``run.train``.

    Args:
      log: the directory of the log, see ``text.feedback_log``.
      paths: the text that is replayed; by default the standard library.
      measure: by default it measures on prompts of the log, which are held out.

    Raises RequestError where the log, the data or the recipe does not fit the target, or where
    ``output`` holds another training; and the errors of ``loop.fit``.
    """
    output = Path(output)
    check_run(recipe.kind, output)
    with lock(output):
        # 1. The log, the draft and the batches.
        check(recipe, target)
        rounds = read_log(log, identify(target))
        module = recipe.head.make(target, np.empty(0, np.int32), jax.random.key(recipe.seed))
        texts, prompts = hold_out(rounds, recipe.prompts)
        batches = make_batches(recipe, rounds, texts, _read_replayed(recipe, target, paths))
        _check_draft(recipe, rounds, module)
        keep_recipe(recipe, batches.summary, output)
        read_acceptance = measure or MeasuredAcceptance(target, recipe.kind, prompts)

        def report(step: int, module: HeadModule | Decoder) -> dict:
            length = read_acceptance(module)
            return {} if length is None else {"acceptance": round(length, 4)}

        # 2. The training.
        logged = BatchSource(batches.read, describe=lambda step: ", in a batch of the log")
        trained = fit(
            module, make_loss(recipe), logged, recipe.optimizer.make(recipe.steps), recipe.steps, output,
            (cast_target(target.model),), report, recipe.every,
            mesh=recipe.mesh.make(),
        )  # fmt: skip
        with report_failure(output, "the drafter", "the last checkpoint is whole; "):
            return save_drafter(recipe, trained, target, output)


def make_loss(recipe: Recipe) -> Callable[..., jax.Array]:
    """The recipe's loss as ``loss(module, (batch, step), target)``, computed in its dtype."""

    def loss(module: nnx.Module, batch: tuple, target: Decoder) -> jax.Array:
        windows, step = batch
        key = jax.random.fold_in(jax.random.key(recipe.seed), step)
        return recipe.loss(cast(module, recipe.dtype), windows, key, target)

    return loss


@dataclasses.dataclass(frozen=True)
class FeedbackBatches:
    """The batches of a recipe: windows of the log, and windows of replayed text.

    Attributes:
      recipe: has the seed, the size of a batch and the length of a window.
      windows: all windows of the log.
      mixture: the texts from which replayed windows are cut; None for none.
      summary: describes the log and the text.
    """

    recipe: Recipe
    windows: LoggedWindows
    mixture: data.Mixture | None
    summary: str

    def read(self, step: int) -> tuple[FeedbackBatch, np.uint32]:
        """The windows of a step, and the step, from which the loss makes its key."""
        recipe = self.recipe
        replay = None
        replayed = recipe.loss.replayed(recipe.batch)
        rows = data.choose_rows(len(self.windows.tokens), recipe.seed, step, recipe.batch - replayed)
        if self.mixture is not None:
            replay = self.mixture.cut(recipe.seed, step * replayed, replayed, recipe.length)
        return FeedbackBatch(LoggedWindows(*(x[rows] for x in self.windows)), replay), np.uint32(step)


def make_batches(recipe: Recipe, rounds: Rounds, texts: np.ndarray, mixture: data.Mixture | None) -> FeedbackBatches:
    """The batches of the texts that are trained on.

    Raises RequestError where a batch cannot be split over the recipe's devices, and for "policy"
    where no token of the log was drawn at random.
    """
    replayed = recipe.loss.replayed(recipe.batch)
    parts = recipe.mesh.data
    if replayed % parts or (recipe.batch - replayed) % parts:
        raise RequestError(
            f"a batch of {recipe.batch - replayed} windows of the log and {replayed} replayed ones cannot be split "
            f"over data = {parts} devices; choose batch and replay so that both are multiples"
        )
    windows = cut_logged(rounds, recipe.length, texts)
    if recipe.loss.objective == "policy" and not (windows.action >= 0).any():
        raise RequestError(
            "objective 'policy' learns from tokens that the draft drew at random, and the log has none; "
            "write a log at a temperature above 0, with no other sampling options"
        )
    summary = f"{rounds.row.size} rounds of checksum {rounds.checksum}"
    if mixture is not None:
        summary += f", {mixture.summarize()}"
    return FeedbackBatches(recipe, windows, mixture, summary)


def hold_out(rounds: Rounds, most: int) -> tuple[np.ndarray, list[list[int]]]:
    """The texts to train on, and at most ``most`` prompts of the others: the last twentieth.

    With ``most`` = 0, or fewer than twenty texts, nothing is held out.
    """
    count = len(rounds.texts)
    trained = count - count // 20 if most else count
    held_out = range(trained, count)[:most]
    return np.arange(trained), [rounds.texts[b][: rounds.prompts[b]].tolist() for b in held_out]


def _read_replayed(recipe: Recipe, target: LanguageModel, paths: Sequence[str | Path | Source]) -> data.Mixture | None:
    if not recipe.loss.replay:
        return None
    mixture, _ = data.read_streams(paths or recipe.data, target.tokenizer, (target.config.eos_token_ids or (0,))[0])
    mixture.check_windows(recipe.length)
    return mixture


def _check_draft(recipe: Recipe, rounds: Rounds, draft: nnx.Module) -> None:
    """Raises RequestError for "policy" and a log of another draft.

    The tokens of another draft are not those of the policy.
    """
    if recipe.loss.objective == "policy" and rounds.drafts != {hash_weights(draft)}:
        raise RequestError(
            "objective 'policy' learns from the tokens of the draft itself, and another one than the start wrote the "
            "log; name that one with --draft, or use objective 'distill'"
        )
