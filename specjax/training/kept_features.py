"""The target's features of the windows of a training, computed once and kept on disk.

A training of a head reads its texts several times. The target's forward pass is the larger part of
a step and gives the same features each time.
"""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from ..heads import Eagle3Head
from ..heads.training_forward import read_target
from ..models.decoder import Decoder
from .data import Mixture
from .online.feature_windows import RecordedWindow
from .recipe import Recipe
from .saving import report_failure

FEATURES = "features"
"""The folder in the directory of a training. It may be deleted."""

_DTYPE = jnp.bfloat16


class KeptBatches:
    """Batches of windows with the target's features of them.

    Windows begin at fixed places, so that every epoch has the same ones. A window's features are
    written when the window is first read, rounded to bfloat16, and marked as whole afterwards. So
    an interrupted training continues with the same numbers. Windows for which ``recipe.features``
    bytes have no room are computed each time.

    Raises StorageError for a full disk.
    """

    def __init__(self, recipe: Recipe, mixture: Mixture, target: Decoder, module: nnx.Module, output: Path):
        assert isinstance(module, Eagle3Head)  # ``Recipe`` keeps features of this kind alone
        self.recipe = recipe
        self.mixture = mixture
        self.directory = output / FEATURES
        self._shape = (recipe.length + 1, len(module.config.taps) + 1, target.config.hidden_size)
        self._bytes = int(np.prod(self._shape)) * np.dtype(_DTYPE).itemsize
        self._most = recipe.features // self._bytes
        self._first = np.cumsum([0, *(stream.tokens.size // recipe.length for stream in mixture.streams)])
        with report_failure(self.directory, "the features"):
            self.directory.mkdir(parents=True, exist_ok=True)
            self._rows, self._marks = (self.directory / name for name in ("rows.bin", "marks.bin"))
            self._rows.touch()
            self._marks.touch()
        taps = module.config.taps

        @jax.jit
        def compute(model, windows):
            out = read_target(model, windows, taps)
            return jnp.stack([*out.taps, out.hidden], 2).astype(_DTYPE)

        self._compute = lambda windows: np.asarray(compute(target, windows))

    def read(self, step: int) -> tuple[RecordedWindow, np.ndarray, np.uint32]:
        """The windows of a step with their features, the marks of learnt tokens, and the step."""
        recipe, length = self.recipe, self.recipe.length
        starts = self.mixture.choose(recipe.seed, step * recipe.batch, recipe.batch, length)
        places = [(k, start // length) for k, start in starts]
        streams = [(self.mixture.streams[k], row * length) for k, row in places]
        windows = np.stack([stream.tokens[s : s + length + 1] for stream, s in streams])
        learnt = np.stack([stream.learnt[s : s + length + 2] for stream, s in streams])
        features = self._take([int(self._first[k]) + row for k, row in places], windows)
        return RecordedWindow(windows, features[:, :, :-1], features[:, :, -1]), learnt, np.uint32(step)

    def renew(self, step: int, module: nnx.Module) -> None:
        """Does nothing: the features do not depend on the head."""

    def describe(self, step: int) -> str:
        """Describes the batch of a step, for error messages."""
        recipe = self.recipe
        starts = self.mixture.describe(recipe.seed, step * recipe.batch, recipe.batch, recipe.length)
        return f", in the batch of windows about tokens {starts} of the data"

    def _take(self, rows: list[int], windows: np.ndarray) -> np.ndarray:
        """The features [W, S + 1, n + 1, E] of windows. Missing ones are computed and written."""
        if not all(map(self._is_whole, rows)):
            features = self._compute(windows)
            with report_failure(self.directory, "the features"):
                self._write(rows, features)
            return features
        with self._rows.open("rb") as file:
            return np.stack([self._read_row(file, row) for row in rows])

    def _is_whole(self, row: int) -> bool:
        with self._marks.open("rb") as file:
            file.seek(row)
            return file.read(1) == b"\1"

    def _read_row(self, file, row: int) -> np.ndarray:
        file.seek(row * self._bytes)
        return np.frombuffer(file.read(self._bytes), _DTYPE).reshape(self._shape)

    def _write(self, rows: list[int], features: np.ndarray) -> None:
        fitting = [(row, x) for row, x in zip(rows, features) if row < self._most]
        with self._rows.open("r+b") as file:
            for row, x in fitting:
                file.seek(row * self._bytes)
                file.write(x.tobytes())
        with self._marks.open("r+b") as file:
            for row, _ in fitting:
                file.seek(row)
                file.write(b"\1")
