"""The API reference is built from the docstrings, and documents every public name."""

import subprocess
import sys
import zlib
from pathlib import Path

import pytest

import specjax
from specjax.rules import RULES

ROOT = Path(__file__).parents[2]


def documented(inventory: bytes) -> set[str]:
    """The names in an ``objects.inv`` of Sphinx: four lines of text, then compressed lines that begin with a name."""
    body = zlib.decompress(inventory.split(b"\n", 4)[4]).decode()
    return {line.split()[0] for line in body.splitlines()}


def _module_of(apply) -> str:
    """The module of a rule's function, or of the class whose instance it is."""
    return getattr(apply, "__module__", None) or type(apply).__module__


@pytest.mark.slow
def test_reference_builds_and_documents_every_public_name(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    names = documented((tmp_path / "objects.inv").read_bytes())
    assert {f"specjax.{name}" for name in specjax.__all__} <= names
    assert "specjax.text.generator.Generator.__call__" in names
    assert {f"specjax.drafters.{drafter.__name__}" for drafter in specjax.METHODS.values()} <= names
    missing = {_module_of(rule.apply) for rule in RULES.values()} - names
    assert not missing, f"docs/api/rules.md lacks {missing}"
