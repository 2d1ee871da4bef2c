"""Checkpoints of a training, in a directory that one training at a time may use.

Orbax writes the arrays. A checksum of each file lies beside them.
"""

import errno
import hashlib
import json
import logging
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import jax
from orbax.checkpoint import v1 as ocp

from ..core.read_files import read_json
from ..errors import CheckpointError, RequestError, SpecjaxError, StorageError

try:
    import fcntl
except ImportError:  # Windows has no such locks.
    fcntl = None

CHECKPOINTS = "checkpoints"
"""The folder of checkpoints in the directory of a training."""

CHECKSUMS = "checksums"
"""The folder of their checksums."""

DAMAGED = "damaged"
"""The folder of damaged checkpoints."""

LOCK = ".lock"
"""The file whose lock a training holds."""

_NEWEST = 2
"""The number of checkpoints to keep. If the newest is damaged, the one before it remains."""

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""The errors of a full disk."""

_LOGGERS = ("absl", "asyncio")
"""The loggers of orbax and of its event loop."""

_locked: set[Path] = set()
"""The directories that this process has locked."""


@contextmanager
def lock(directory: Path) -> Iterator[None]:
    """Makes the directory of a training if it is missing, and locks it.

    The system releases the lock when the process ends, even when it is killed. Raises
    CheckpointError where another process holds the lock.
    """
    directory = Path(directory).resolve()
    if fcntl is None or directory in _locked or jax.process_index():
        yield
        return
    with report_failure(directory, "the lock file"):
        directory.mkdir(parents=True, exist_ok=True)
        file = (directory / LOCK).open("w")
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CheckpointError(
                f"{directory}: another training writes there; wait for its end or name another --output"
            ) from None
        except OSError:
            pass  # The file system has no locks.
        _locked.add(directory)
        try:
            yield
        finally:
            _locked.discard(directory)


@contextmanager
def report_failure(directory: Path, part: str, state: str = "") -> Iterator[None]:
    """Turns an error in the block, which writes ``part``, into an error of one line.

    Args:
      part: the name of the written part, for the message.
      state: the state of the older checkpoints, for the message.

    Raises StorageError for a full disk, and CheckpointError for other errors.
    """
    try:
        yield
    except SpecjaxError:
        raise
    except Exception as error:  # Orbax raises ValueError, among others, for a full disk.
        full = next((os.strerror(code) for code in _FULL if os.strerror(code) in str(error)), None)
        line = f"{directory}: {part} cannot be written ({full or _first_line(error)}); {state}"
        if full:
            raise StorageError(f"{line}free some space and run again") from None
        raise CheckpointError(f"{line}mend this and run again") from None


class Checkpoints:
    """The checkpoints in the directory of a training.

    Checkpoints of another training are never deleted.
    """

    def __init__(self, directory: Path):
        self.directory = directory
        self.root = directory / CHECKPOINTS
        self.orbax: ocp.training.Checkpointer  # ``__enter__`` sets it
        self.hook = sys.unraisablehook

    def __enter__(self):
        for name in _LOGGERS:
            logging.getLogger(name).addFilter(_has_no_trace)
        self.hook = sys.unraisablehook
        sys.unraisablehook = _skip_closed_loops(self.hook)
        policy = ocp.training.preservation_policies.LatestN(_NEWEST)
        with report_failure(self.directory, "the directory of checkpoints"):
            self.orbax = ocp.training.Checkpointer(
                self.root,  # pyright: ignore[reportArgumentType]  (orbax names a protocol that Path does not meet)
                preservation_policy=policy,  # pyright: ignore[reportArgumentType]
                cleanup_tmp_directories=True,
            )
        return self

    def __exit__(self, kind, *_):
        # After an error, errors of closing are dropped: the first error is the cause.
        with suppress(Exception) if kind else report_failure(self.directory, "the last checkpoint"):
            self.orbax.close()
        if kind is None:  # After an error, some threads still log.
            sys.unraisablehook = self.hook
            for name in _LOGGERS:
                logging.getLogger(name).removeFilter(_has_no_trace)

    def restore(self, fresh: tuple) -> tuple[int, tuple]:
        """The step and the arrays of the newest whole checkpoint; 0 and ``fresh`` without one.

        A checkpoint is damaged if its files differ from their checksums. Damaged checkpoints are
        moved to ``damaged/``. Raises CheckpointError where all checkpoints are damaged, and where
        the arrays of the newest whole one have other names, shapes or types than ``fresh``.
        """
        steps = sorted((checkpoint.step for checkpoint in self.orbax.checkpoints), reverse=True)
        damaged = {step: reason for step in steps if (reason := self.find_damage(step))}
        if steps and len(damaged) == len(steps):
            raise CheckpointError(
                f"{self.directory}: no checkpoint is whole (that of step {steps[0]}: {damaged[steps[0]]}); "
                f"name another --output, or remove {self.root} to begin again"
            )
        for step in steps:
            if step in damaged:
                print(f"checkpoint {step} is damaged and left out ({damaged[step]})", file=sys.stderr)
                self._move_aside(step)
                continue
            try:
                return step, self.orbax.load(step, fresh)
            except Exception as error:  # Orbax raises errors of many classes for other names, shapes and types.
                raise CheckpointError(
                    f"{self.directory}: the checkpoint of step {step} is of another training "
                    f"({_first_line(error)}); name another --output"
                ) from None
        return 0, fresh

    def save(self, step: int, arrays: tuple) -> None:
        """Writes a checkpoint and its checksums. Ctrl-C takes effect afterwards.

        Raises StorageError for a full disk, and CheckpointError for other errors.
        """
        before = self.orbax.latest
        state = f"that of step {before.step} is whole; " if before else "there is none yet; "
        with _delay_interrupt(), report_failure(self.directory, f"the checkpoint of step {step}", state):
            self.orbax.save(step, arrays)
            if not jax.process_index():
                self._write_checksums(step)

    def _write_checksums(self, step: int) -> None:
        where = self.directory / CHECKSUMS
        where.mkdir(exist_ok=True)
        path = where / f"{step}.json"
        half = path.with_suffix(".half")
        half.write_text(json.dumps(compute_checksums(self.root / str(step))))
        os.replace(half, path)
        for old in where.glob("*.json"):
            if not (self.root / old.stem).exists():
                old.unlink()

    def find_damage(self, step: int) -> str:
        """The first difference between the files of a checkpoint and their checksums, or "".

        A checkpoint without checksums counts as whole.
        """
        try:
            known = read_json(self.directory / CHECKSUMS / f"{step}.json", "the checksums")
        except RequestError:
            return ""
        if not isinstance(known, dict):
            return ""
        present = compute_checksums(self.root / str(step))
        wrong = [name for name in known if present.get(name) != known[name]]
        return f"{wrong[0]} is {'changed' if wrong[0] in present else 'missing'}" if wrong else ""

    def _move_aside(self, step: int) -> None:
        with report_failure(self.directory, f"the directory {DAMAGED}"):
            aside = self.directory / DAMAGED / str(step)
            aside.parent.mkdir(exist_ok=True)
            if aside.exists():
                shutil.rmtree(aside)
            (self.root / str(step)).rename(aside)
            (self.directory / CHECKSUMS / f"{step}.json").unlink(missing_ok=True)
            self.orbax.reload()


def _has_no_trace(record: logging.LogRecord) -> bool:
    """A filter for orbax's logs, which drops records with a trace.

    Each thread of orbax logs the errors of all threads with their traces, a thousand lines in all.
    Orbax also raises the error, so no information is lost.
    """
    return not record.exc_info


def _skip_closed_loops(hook: Callable) -> Callable:
    """``hook`` without the error of a thread that reports to an event loop after its end.

    Orbax closes its event loop at the first error, while threads of tensorstore still write.
    """

    def show(unraisable):
        if str(unraisable.exc_value) != "Event loop is closed":
            hook(unraisable)

    return show


def compute_checksums(directory: Path) -> dict[str, str]:
    """The SHA-256 checksums of all files in a directory, by their relative paths."""
    checksums = {}
    for path in sorted(path for path in directory.rglob("*") if path.is_file()):
        with path.open("rb") as file:
            checksums[path.relative_to(directory).as_posix()] = hashlib.file_digest(file, "sha256").hexdigest()
    return checksums


@contextmanager
def _delay_interrupt() -> Iterator[None]:
    """Delays the effect of Ctrl-C to the end of the block."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    signals = []
    before = signal.signal(signal.SIGINT, lambda *_: signals.append(True))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if signals:
        raise KeyboardInterrupt


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    return text.splitlines()[0][:200] if text else type(error).__name__
