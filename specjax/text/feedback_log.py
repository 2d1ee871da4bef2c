"""The log of rounds on disk.

A draft learns from it: ``specjax train --recipe feedback`` reads it.

A log is a directory of files. Each is complete in itself: a header that names the models, the texts
of some rows, and their rounds. The texts are those of the users, so only the owner may read them.
"""

import dataclasses
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from ..checkpoints.load import LanguageModel
from ..core.checks import whole
from ..core.round_record import Recording, Rounds
from ..core.sampling import NUMBERS, SamplingParams
from ..core.state import DecodeState
from ..errors import RequestError, StorageError
from ..heads.base import Head
from ..loop.drafter import Drafter, Models
from ..parallel import fetch, is_first_host
from ..rules.acceptance import Drawn

FORMAT = 1
"""The version of the files."""

MEGABYTES = 256
"""The size of a log on disk, by default."""

FILES = "rounds-*.npz"
"""The names of the files of a log; they are in the order of their writing."""

_SAMPLED = 64
"""The weights of each parameter that ``hash_weights`` reads."""

_OF_ROUNDS = ("place", "drafted", "draft", "accepted", "correction", "top_ids", "top")


@dataclasses.dataclass(frozen=True)
class FeedbackLog:
    """Writes the rounds of a session's batches to a directory.

    Attributes:
      directory: the log.
      header: describes the models and the method.
      drafter: the method, whose options decide at which temperature the draft draws.
      recording: the size of the buffer on the device.
      megabytes: the size of the log on disk. The oldest files are deleted beyond it.
    """

    directory: Path
    header: dict
    drafter: Drafter
    recording: Recording = Recording()
    megabytes: int = MEGABYTES

    def of_target(self, target: LanguageModel) -> "FeedbackLog":
        """The log with another target."""
        return dataclasses.replace(self, header=self.header | {"target": identify(target)})

    def of_draft(self, draft: LanguageModel | Head) -> "FeedbackLog":
        """The log with another draft."""
        return dataclasses.replace(self, header=self.header | {"draft": identify(draft)})

    def room(self, state: DecodeState) -> int:
        """The number of rounds until the buffer of a batch is full."""
        assert state.rounds is not None  # a session with a log records rounds
        return self.recording.rounds - int(fetch(state.rounds.count).max())

    def drain(self, state: DecodeState) -> DecodeState:
        """Writes the buffer to a file and empties it, if it is full or all rows have ended.

        Raises StorageError for a file that cannot be written.
        """
        assert state.rounds is not None
        if self.room(state) > 0 and not fetch(state.done).all():
            return state
        rounds = fetch(state.rounds)
        if is_first_host() and rounds.count.any():
            self._write(self._collect(state, rounds))
        count = jax.device_put(np.zeros_like(rounds.count), state.rounds.count.sharding)
        return state.replace(rounds=state.rounds.replace(count=count))

    def _collect(self, state: DecodeState, rounds: Rounds) -> dict[str, Any]:
        """The arrays of a file: texts of all rows, joined, and their rounds in order."""
        tokens, lengths, prompts = fetch((state.tokens, state.length, state.prompt_length))
        count = np.asarray(rounds.count)
        held = rounds.place.shape[1]
        oldest = np.maximum(count - held, 0)
        row = np.repeat(np.arange(count.size, dtype=np.int32), count - oldest)
        slot = np.concatenate([np.arange(first, end) % held for first, end in zip(oldest, count)])
        return dict(
            header=json.dumps(self.header | {"overwritten": int(oldest.sum())}),
            tokens=np.concatenate([text[:n] for text, n in zip(tokens, lengths)]),
            length=lengths,
            prompt_length=prompts,
            temperature=draft_temperature(self.drafter, state.request.sampling, count.size),
            row=row,
            **{name: getattr(rounds, name)[row, slot] for name in _OF_ROUNDS},
        )

    def _write(self, arrays: dict[str, Any]) -> None:
        """Writes a file as a whole, which only the owner may read, and deletes the oldest ones."""
        name = f"rounds-{time.time_ns():020d}-{os.getpid()}.npz"
        try:
            handle, half = tempfile.mkstemp(dir=self.directory, prefix=".half-")
            try:
                with os.fdopen(handle, "wb") as file:
                    np.savez_compressed(file, **arrays)
                os.replace(half, self.directory / name)
            finally:
                Path(half).unlink(missing_ok=True)
            size = 0
            for path in sorted(self.directory.glob(FILES), reverse=True):
                size += path.stat().st_size
                if size > self.megabytes * 2**20:
                    path.unlink(missing_ok=True)
        except OSError as error:
            raise StorageError(
                f"feedback log {self.directory}: cannot be written ({error.strerror}); free some space or leave it out"
            ) from None


def open_log(
    directory: str | Path,
    method: str,
    drafter: Drafter,
    target: LanguageModel,
    drafts: Sequence[LanguageModel | Head],
    megabytes: int = MEGABYTES,
) -> FeedbackLog:
    """The log in a directory, which is made if it is missing and then belongs to the user alone.

    Raises RequestError for a method whose rounds are not recorded, and for a directory that cannot
    be written.
    """
    directory = Path(directory)
    check_method(method, drafter)
    whole("feedback_log_mb", megabytes)
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        writable = os.access(directory, os.W_OK | os.X_OK)
    except OSError:
        writable = False
    if not writable:
        raise RequestError(f"feedback log {directory}: no directory that can be written; name another")
    header = dict(format=FORMAT, method=method, target=identify(target), draft=identify(drafts[0]))
    return FeedbackLog(directory, header, drafter, megabytes=megabytes)


def check_method(method: str, drafter: Drafter) -> None:
    """Raises RequestError for a method that does not draft chains with one language model."""
    if drafter.needs != Models() or drafter.drawn is not Drawn.CHAIN:
        raise RequestError(
            f"a feedback log needs chains that a draft model draws, and method {method!r} drafts in another way; "
            "use draft_model, or a list of methods with it"
        )


def identify(model: LanguageModel | Head) -> dict[str, Any]:
    """The name of a model, the size of its vocabulary, and a hash of some of its weights."""
    module = model.module if isinstance(model, Head) else model.model
    return dict(name=model.name, vocab_size=model.config.vocab_size, weights=hash_weights(module))


def hash_weights(module: nnx.Module) -> str:
    """A hash of some of the weights. It is the same in any dtype that holds the weights exactly."""
    digest = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(module):
        if jnp.issubdtype(leaf.dtype, jnp.floating):
            few = leaf[(0,) * (leaf.ndim - 1)][:_SAMPLED] if leaf.ndim else leaf
            digest.update(f"{jax.tree_util.keystr(path)}{leaf.shape}".encode())
            digest.update(np.asarray(fetch(few), np.float32).tobytes())
    return digest.hexdigest()[:16]


def draft_temperature(drafter: Drafter, sampling: SamplingParams, rows: int) -> np.ndarray:
    """Float32 [rows], the temperature at which the draft drew.

    0 stands for greedy rows, and for rows in which other options or other methods changed the
    draft's distribution: its probabilities cannot be computed from logits and temperature alone.
    """
    options = getattr(drafter, "draft_options", None)  # a list of methods has no options for all its drafts
    if options is None or sampling.constraint is not None or sampling.processors:
        return np.zeros(rows, np.float32)
    values = {name: np.asarray(fetch(value)) for name, value in vars(sampling).items() if isinstance(value, jax.Array)}
    own = {name.removeprefix("draft_"): value for name, value in options.items()}
    value = lambda name: np.broadcast_to(own.get(name, values.get(name, 0)), rows)
    others = [value(name) == number["default"] for name, number in NUMBERS.items() if name != "temperature"]
    free = np.all(others, axis=0) & ~np.broadcast_to(values["bias"].any(-1), rows) & (values["temperature"] > 0)
    return np.where(free, value("temperature"), 0).astype(np.float32)
