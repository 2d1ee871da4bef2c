"""The record of a boost: its settings, and the result of each finished step.

A later call with the same settings in the same directory goes on after the last finished step.
"""

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ...core.checks import shorten
from ...core.read_files import read_json
from ...errors import RequestError
from ...training.saving import lock, report_failure

JOURNAL = "journal.json"


class Journal:
    """The file ``journal.json`` in the directory of a boost.

    Attributes:
      directory: the directory.
      results: the result of each finished step, an object for JSON, by the step's name.
      seconds: the seconds that each step has taken, over all calls.
    """

    def __init__(self, directory: Path, settings: dict[str, Any]):
        self.directory = directory
        self.settings = settings
        self.results: dict[str, Any] = {}
        self.seconds: dict[str, float] = {}
        self._begun: dict[str, float] = {}

    def elapsed(self, step: str) -> float:
        """The seconds of a step so far, over all calls, while it runs too."""
        running = time.monotonic() - self._begun[step] if step in self._begun else 0.0
        return self.seconds.get(step, 0.0) + running

    def do(self, step: str, work: Callable[[], Any]) -> Any:
        """The result of a step: the recorded one, or that of ``work``, which is then recorded."""
        if step not in self.results:
            with self._clock(step):
                result = work()
            self.results[step] = json.loads(json.dumps(result))
            self._write()
        return self.results[step]

    @contextmanager
    def _clock(self, step: str) -> Iterator[None]:
        """Adds the seconds of the block to the step's, also where the block is interrupted."""
        self._begun[step] = time.monotonic()
        try:
            yield
        finally:
            self.seconds[step] = self.elapsed(step)
            del self._begun[step]
            self._write()

    def _write(self) -> None:
        content = {"settings": self.settings, "results": self.results, "seconds": self.seconds}
        half = self.directory / f"{JOURNAL}.half"
        with report_failure(self.directory, JOURNAL, "the steps before are recorded; "):
            half.write_text(json.dumps(content, indent=1) + "\n")
            os.replace(half, self.directory / JOURNAL)


@contextmanager
def open_journal(directory: Path, settings: dict[str, Any]) -> Iterator[Journal]:
    """The journal of a directory, which no other boost uses meanwhile.

    Raises RequestError for a directory with other files or with the boost of other settings, and
    CheckpointError where another process uses it.
    """
    check_directory(directory, settings)
    with lock(directory):
        journal = Journal(directory, json.loads(json.dumps(settings)))
        if (directory / JOURNAL).exists():
            recorded = read_json(directory / JOURNAL, str(directory / JOURNAL))
            journal.results, journal.seconds = recorded["results"], recorded["seconds"]
        journal._write()
        yield journal


def check_directory(directory: Path, settings: dict[str, Any]) -> None:
    """Raises RequestError for a directory with other files or with the boost of other settings."""
    file = directory / JOURNAL
    if not file.exists():
        if directory.exists() and (not directory.is_dir() or any(p.name[0] != "." for p in directory.iterdir())):
            raise RequestError(f"--output {directory} exists and holds no boost; name a new directory")
        return
    recorded = read_json(file, str(file))
    if not isinstance(recorded, dict) or not {"settings", "results", "seconds"} <= recorded.keys():
        raise RequestError(f"{file}: is no journal of a boost; name a new directory")
    for name, value in json.loads(json.dumps(settings)).items():
        old = recorded["settings"].get(name)
        if old != value:
            raise RequestError(
                f"--output {directory} holds a boost with {name} {shorten(old)}, not {shorten(value)}; "
                "name another directory"
            )
