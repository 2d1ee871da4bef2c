"""A head that learns beside a serving engine, from the texts of its requests."""

import threading
import time
from collections import deque
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from ...engine.engine import Engine
from ...engine.handle import Handle
from ...errors import RequestError
from ...heads import Eagle3Head
from ...heads.training_forward import read_target, unroll
from ...models.decoder import Decoder
from ...text.drafts import module_of
from ...text.result import Result
from ..losses import weighted_mean
from ..recipe import Recipe, make_recipe
from ..run import cast, cast_target
from .head_training import HeadTraining

RECIPE = {
    "kind": "eagle3", "batch": 4, "length": 128, "loss": {"steps": 3}, "steps": 10**6,
    "optimizer": {"name": "adamw", "rate": 2e-4, "warmup": 10, "decay": 0.0},
}  # fmt: skip
"""The recipe of a learner."""

_HELD_OUT = 4
"""One of so many texts is held out."""

_EVERY = 20
"""The steps between comparisons of heads on the held-out texts."""

_COMPARED = 16
"""The newest held-out windows, on which heads are compared."""

_PATIENCE = 10.0
"""The seconds that the end waits for a step. A compilation takes longer, and cannot be stopped."""

_BETTER = 0.01
"""The tokens a round by which a head must be better to replace another one."""


class Learner:
    """Trains the EAGLE-3 head of a running engine in a thread, and hands it better heads.

    Each ended request leaves its newest tokens as a window. A step trains on random windows of the
    memory. After every few steps the head is compared with the serving head and with the first one
    on the newest held-out windows, by the tokens a round that they would give. The best one serves
    from then on, and the training continues from it. Texts do not depend on the head, and a swap
    compiles nothing. Windows stay in memory.

    Args:
      engine: an engine whose method drafts with an EAGLE-3 head.
      share: the share of the time in which the thread computes, above 0 and at most 1.
      windows: the most windows in memory.
      say: called with a line at each swap.
      recipe: the recipe of the training; by default ``RECIPE``.

    Attributes:
      steps: the steps so far.
      swaps: the heads so far that replaced another one.
      head: the head that serves.

    Raises RequestError for another drafter, and for a share out of bounds.
    """

    def __init__(
        self,
        engine: Engine,
        share: float = 0.2,
        windows: int = 512,
        say: Callable[[str], None] = lambda line: None,
        recipe: Recipe | None = None,
    ):
        drafts = engine.generator.drafts
        module = module_of(drafts[0]) if len(drafts) == 1 else None
        if not isinstance(module, Eagle3Head):
            raise RequestError("only an EAGLE-3 head learns while it serves; give one with --boost or --draft")
        if not 0 < share <= 1:
            raise RequestError(f"the share of learning must be above 0 and at most 1, not {share}")
        self.recipe = recipe or make_recipe(RECIPE, "learner")
        self.steps = self.swaps = 0
        self.head = self._first = module
        self._engine, self._share, self._say = engine, share, say
        self._windows: deque[tuple[np.ndarray, np.ndarray]] = deque(maxlen=windows)
        self._held_out: deque[tuple[np.ndarray, np.ndarray]] = deque(maxlen=_COMPARED)
        self._texts = 0
        self._is_over = threading.Event()
        self._target = cast_target(engine.target.model)
        self._training = HeadTraining(module, self.recipe)
        steps = self.recipe.loss.steps
        self._measure = jax.jit(lambda head, texts, learnt: expected_length(head, self._target, texts, learnt, steps))
        self._thread = threading.Thread(target=self._work, name="specjax learner", daemon=True)

    def __enter__(self) -> "Learner":
        self._engine.listeners.append(self.add)
        self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        self._engine.listeners.remove(self.add)
        self._is_over.set()
        self._thread.join(_PATIENCE)

    def add(self, handle: Handle) -> None:
        """Takes the newest tokens of a request that has ended, if they fill half a window."""
        result, length = handle.outcome, self.recipe.length
        if not isinstance(result, Result) or len(result.token_ids) < length // 2:
            return
        text = [*result.prompt_token_ids, *result.token_ids][-length - 1 :]
        window = np.zeros(length + 1, np.int32)
        window[: len(text)] = text
        learnt = np.zeros(length + 2, bool)
        learnt[max(len(text) - len(result.token_ids), 0) : len(text)] = True
        self._texts += 1
        (self._windows if self._texts % _HELD_OUT else self._held_out).append((window, learnt))

    def _work(self) -> None:
        pause = 0.1
        while not self._is_over.wait(pause):
            if len(self._windows) < self.recipe.batch or not self._held_out:
                continue
            began = time.perf_counter()
            try:
                self.learn()
            except Exception as error:  # serving goes on without learning
                return self._say(f"the head learns no more: {' '.join(str(error).split())[:200]}")
            seconds = time.perf_counter() - began
            pause = seconds * (1 / self._share - 1)

    def learn(self) -> None:
        """Makes a step, and compares the heads after every few steps."""
        rows = np.random.default_rng((self.recipe.seed, self.steps)).integers(
            len(self._windows), size=self.recipe.batch
        )
        windows, learnt = map(np.stack, zip(*(self._windows[row] for row in rows.tolist())))
        batch = windows, learnt, np.uint32(self.steps)
        loss = self._training.step(batch, self._target)
        self.steps += 1
        if not np.isfinite(loss):
            self._training.begin(self.head)
        elif self.steps % _EVERY == 0:
            self._compare()

    def _compare(self) -> None:
        """Lets the best head on the held-out windows serve."""
        windows, learnt = map(np.stack, zip(*tuple(self._held_out)))  # the engine may add one meanwhile
        trained = self._training.head
        trained_length, serving_length, first_length = (
            float(self._measure(cast(head, "float32"), windows, learnt)) for head in (trained, self.head, self._first)
        )
        best, best_length = trained, trained_length
        if first_length > trained_length:
            best, best_length = self._first, first_length
        if best_length > serving_length + _BETTER:
            self._engine.update(draft=best)
            self.head = best
            self.swaps += 1
            self._say(
                f"the head of {self.steps} steps serves: {serving_length:.2f} to {best_length:.2f} tokens a round"
            )
        if trained_length < max(first_length, serving_length) - _BETTER:
            self._training.begin(self.head)


def expected_length(head: Eagle3Head, target: Decoder, windows: jax.Array, learnt: jax.Array, steps: int) -> jax.Array:
    """The tokens a round that chains of ``steps`` drafts give on texts, float32 [].

    A round may begin at each place of a text. A drafted token is accepted if it and all before it
    are the text's (teacher forcing), as ``sample_and_walk`` accepts them.

    Args:
      windows: int32 [B, S + 1], the texts.
      learnt: bool [B, S + 2], the tokens at which a draft may begin.
    """
    out = read_target(target, windows, head.config.taps)
    known = jnp.arange(head.config.draft_vocab_size) + head.draft_to_target[...]
    N = windows.shape[1] - 1 - steps
    features = head.fuse(target, out.taps)[:, :N]  # row i drafts tokens i + 2, i + 3, ...
    accepted, length = jnp.ones(features.shape[:2], bool), jnp.float32(1)
    for s, (_, hidden) in enumerate(unroll(head, target, features, windows[:, 1:], steps)):
        drafted = known[head.draft_logits(hidden).argmax(-1)]
        accepted &= drafted == windows[:, 2 + s : 2 + s + N]
        length += weighted_mean(accepted, learnt[:, 2 : 2 + N])
    return length
