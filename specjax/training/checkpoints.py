"""Checkpoints of a training: arrays by orbax, a checksum for each of their files, in a directory that one training at a time may use."""

import errno
import hashlib
import json
import logging
import os
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import jax
from orbax.checkpoint import v1 as ocp

from ..errors import CheckpointError, SpecjaxError, StorageError

try:
    import fcntl
except ImportError:  # Windows has no such locks
    fcntl = None

CHECKPOINTS, CHECKSUMS, DAMAGED, LOCK = "checkpoints", "checksums", "damaged", ".lock"
"""Names in a run's directory."""

_KEPT = 2
"""Checkpoints that are kept: should the newest be damaged, there is one before it."""

_FULL = errno.ENOSPC, errno.EDQUOT, errno.EFBIG

_LOGGERS = "absl", "asyncio"

_mine: set[Path] = set()
"""Directories that this process has locked."""


@contextmanager
def alone_in(directory: Path) -> Iterator[None]:
    """Locks a run's directory, which is made if need be. The system gives the lock back when the process ends, however it ends.

    Raises CheckpointError where another process trains into it.
    """
    directory = Path(directory).resolve()
    if fcntl is None or directory in _mine or jax.process_index():
        yield
        return
    with told(directory, "the lock file"):
        directory.mkdir(parents=True, exist_ok=True)
        lock = (directory / LOCK).open("w")
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CheckpointError(f"{directory}: another training writes there; wait for its end or name another --output") from None
        except OSError:
            pass  # a file system without locks
        _mine.add(directory)
        try:
            yield
        finally:
            _mine.discard(directory)


@contextmanager
def told(directory: Path, what: str, kept: str = "") -> Iterator[None]:
    """Makes one line of what goes wrong while ``what`` is written."""
    try:
        yield
    except SpecjaxError:
        raise
    except Exception as error:  # orbax's storage raises ValueError, among others, for a full disk
        full = next((os.strerror(code) for code in _FULL if os.strerror(code) in str(error)), None)
        line = f"{directory}: {what} cannot be written ({full or _first_line(error)}); {kept}"
        if full:
            raise StorageError(f"{line}free some space and run again") from None
        raise CheckpointError(f"{line}see to it and run again") from None


class Checkpoints:
    """The checkpoints in a run's directory. Nothing is deleted that no run of the same shape wrote."""

    def __init__(self, directory: Path):
        self.directory, self.root = directory, directory / CHECKPOINTS
        self.orbax = None

    def __enter__(self):
        for name in _LOGGERS:
            logging.getLogger(name).addFilter(_without_traces)
        policy = ocp.training.preservation_policies.LatestN(_KEPT)
        with told(self.directory, "the directory of checkpoints"):
            self.orbax = ocp.training.Checkpointer(self.root, preservation_policy=policy, cleanup_tmp_directories=True)
        return self

    def __exit__(self, kind, *_):
        with suppress(Exception) if kind else told(self.directory, "the last checkpoint"):  # what went wrong first is what counts
            self.orbax.close()
        for name in _LOGGERS if kind is None else ():  # after a fault some threads still end
            logging.getLogger(name).removeFilter(_without_traces)

    def restored(self, fresh: tuple) -> tuple[int, tuple]:
        """The step and the arrays of the newest checkpoint that is whole, or 0 and the fresh ones where there is none.

        Those whose files are not what was written are moved aside. Raises CheckpointError where none is whole, and where a whole one does
        not have the shape of ``fresh``.
        """
        steps = sorted((found.step for found in self.orbax.checkpoints), reverse=True)
        damaged = {step: reason for step in steps if (reason := self._damage(step))}
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
            except Exception as error:  # whatever orbax raises for other names, shapes and types
                raise CheckpointError(
                    f"{self.directory}: the checkpoint of step {step} is of another training ({_first_line(error)}); name another --output"
                ) from None
        return 0, fresh

    def save(self, step: int, arrays: tuple) -> None:
        """Writes a checkpoint and its checksums; whoever interrupts is heard after that. Raises StorageError for a full disk."""
        before = self.orbax.latest
        kept = f"that of step {before.step} is whole; " if before else "there is none yet; "
        with _undisturbed(), told(self.directory, f"the checkpoint of step {step}", kept):
            self.orbax.save(step, arrays)
            if not jax.process_index():
                self._write_checksums(step)

    def _write_checksums(self, step: int) -> None:
        where = self.directory / CHECKSUMS
        where.mkdir(exist_ok=True)
        path = where / f"{step}.json"
        half = path.with_suffix(".half")
        half.write_text(json.dumps(_checksums(self.root / str(step))))
        os.replace(half, path)
        for old in where.glob("*.json"):
            if not (self.root / old.stem).exists():
                old.unlink()

    def _damage(self, step: int) -> str:
        """What is wrong with the files of a checkpoint, or nothing. Those of older versions have no checksums."""
        try:
            known = json.loads((self.directory / CHECKSUMS / f"{step}.json").read_text())
        except (OSError, ValueError):
            return ""
        found = _checksums(self.root / str(step))
        wrong = [name for name in known if found.get(name) != known[name]]
        return f"{wrong[0]} is {'changed' if wrong[0] in found else 'missing'}" if wrong else ""

    def _move_aside(self, step: int) -> None:
        with told(self.directory, f"the directory {DAMAGED}"):
            aside = self.directory / DAMAGED / str(step)
            aside.parent.mkdir(exist_ok=True)
            if aside.exists():
                shutil.rmtree(aside)
            (self.root / str(step)).rename(aside)
            (self.directory / CHECKSUMS / f"{step}.json").unlink(missing_ok=True)
            self.orbax.reload()


def _without_traces(record: logging.LogRecord) -> bool:
    """Each of orbax's threads logs the error of the others with its own trace, a thousand lines; it is raised as well."""
    return not record.exc_info


def _checksums(directory: Path) -> dict[str, str]:
    found = {}
    for path in sorted(path for path in directory.rglob("*") if path.is_file()):
        with path.open("rb") as file:
            found[path.relative_to(directory).as_posix()] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Ctrl-C within takes effect at the end."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heard = []
    before = signal.signal(signal.SIGINT, lambda *_: heard.append(True))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if heard:
        raise KeyboardInterrupt


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    return text.splitlines()[0][:200] if text else type(error).__name__
