"""What the measurements share: arguments, the conditions of a measurement, its data and its page.

Every page has one form: a title, a question, and for each measurement its conditions and its tables;
then the consequences for a user. tests/docs/test_results.py holds pages to this form.
"""

import argparse
import dataclasses
import datetime
import hashlib
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

import flax
import jax
import numpy as np

from specjax.kernels.cpu.processor import matrix_extensions, processor

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "docs" / "results"
DATA = Path(__file__).resolve().parent / "results"
ZOO = ROOT / "specjax" / "checkpoints" / "zoo"
RANDOM = "random weights"
"""The models of a measurement that does not depend on the numbers of weights."""

_DIGITS = 12


def arguments(text: str | None) -> argparse.ArgumentParser:
    """A parser whose help shows a script's docstring as it stands."""
    return argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)


def with_folder(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """The parser with ``--results``, a folder for all files of a measurement."""
    parser.add_argument("--results", type=Path, help="the folder to write to, in place of the repository's")
    return parser


@cache
def hash_of(model: str) -> str:
    """The first digits of the SHA-256 of a model's weights: an embedded name, a folder or a file."""
    place = ZOO / model if (ZOO / model).is_dir() else Path(model)
    digest = hashlib.sha256()
    for file in [place] if place.is_file() else sorted(place.glob("*.safetensors")):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:_DIGITS]


def measured(models: Iterable[str] = (), note: str = "") -> dict:
    """The conditions of a measurement that runs now.

    Args:
      models: embedded names, and folders or files of other models. Without any, ``note`` says why.
      note: words about the models, such as the origin of a folder.
    """
    plain = [Path(word).name if "/" in word else word for word in sys.argv[1:]]  # no paths of this machine
    script = Path(sys.argv[0]).resolve()
    name = script.relative_to(ROOT).as_posix() if script.is_relative_to(ROOT) else script.name
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "command": " ".join(["python", name.removesuffix("/__main__.py"), *plain]),
        "cpu": processor(),
        "extensions": list(matrix_extensions()),
        "cores": cores,
        "device": jax.devices()[0].device_kind,
        "python": platform.python_version(),
        "jax": jax.__version__,
        "flax": flax.__version__,
        "date": datetime.date.today().isoformat(),
        "commit": commit.stdout.strip() or "unknown",
        "models": {Path(model).name: hash_of(model) for model in models},
        "note": note,
    }


def section(conditions: dict, text: str, title: str = "") -> str:
    """One measurement of a page: its title if the page has several, its conditions, and its text."""
    of = conditions
    extensions = f" ({', '.join(of['extensions'])})" if of["extensions"] else ""
    device = "" if of["device"] == "cpu" else f", {of['device']}"
    models = ", ".join(f"{name} `{digits}`" for name, digits in of["models"].items())
    lines = [
        f"- Command: `{of['command']}`",
        f"- Machine: {of['cpu']}{extensions}, {of['cores']} cores{device}; "
        f"Python {of['python']}, jax {of['jax']}, flax {of['flax']}",
        f"- Measured: {of['date']}, commit {of['commit']}",
        f"- Models: {'; '.join(filter(None, (models, of['note'])))}",
    ]
    return "\n\n".join([*([f"## {title}"] if title else []), "\n".join(lines), text.strip()])


@dataclasses.dataclass(frozen=True)
class Result:
    """The files of a measurement: data in scripts/benchmarks/results/, the page and pictures in docs/results/.

    Attributes:
      name: of the page, and the beginning of the names of its data.
      part: the rest of the data's name, where a page shows several measurements.
      folder: a folder for all files, in place of the repository's.
    """

    name: str
    part: str = ""
    folder: Path | None = None

    @property
    def data(self) -> Path:
        return (self.folder or DATA) / f"{'_'.join(filter(None, (self.name, self.part)))}.json"

    @property
    def page(self) -> Path:
        return (self.folder or PAGES) / f"{self.name}.md"

    def picture(self, suffix: str = ".png") -> Path:
        return self.page.with_name(self.data.stem + suffix)

    def read(self) -> dict:
        """The data on disk; {} without any."""
        return json.loads(self.data.read_text()) if self.data.exists() else {}

    def read_all(self) -> list[dict]:
        """The data of all measurements of the page."""
        return [json.loads(file.read_text()) for file in sorted(self.data.parent.glob(f"{self.name}_*.json"))]

    def save(self, report: dict) -> None:
        self.data.parent.mkdir(parents=True, exist_ok=True)
        self.data.write_text(json.dumps(report, indent=1, default=str) + "\n")

    def write(self, title: str, question: str, sections: Iterable[str], follows: str) -> None:
        """Writes the page."""
        parts = [f"# {title}", question, *sections, f"## For the user\n\n{follows.strip()}"]
        self.page.parent.mkdir(parents=True, exist_ok=True)
        self.page.write_text("\n\n".join(part.strip() for part in parts) + "\n")
        print(f"written to {self.page}", file=sys.stderr)


def timed(program: Callable, *operands) -> float:
    """The seconds of a call, with the wait for its arrays."""
    began = time.perf_counter()
    jax.block_until_ready(program(*operands))
    return time.perf_counter() - began


def quartiles(values, form: str = ".2f") -> str:
    """The median with the quartiles."""
    low, median, high = np.percentile(values, [25, 50, 75])
    return f"{median:{form}} ({low:{form}} to {high:{form}})"


def resident_bytes() -> int:
    """The bytes of main memory that this process holds; 0 on a system without /proc."""
    file = Path("/proc/self/statm")
    return int(file.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if file.exists() else 0
