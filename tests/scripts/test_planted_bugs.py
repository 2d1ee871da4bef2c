"""``scripts/benchmarks/planted_bugs.py`` finds the lines that it replaces."""

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
BUGS = runpy.run_path(str(ROOT / "scripts" / "benchmarks" / "planted_bugs.py"))["BUGS"]


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name.split(":")[0])
def test_the_code_has_the_line_of_each_bug_once(bug):
    assert (ROOT / bug.file).read_text().count(bug.right) == 1 and bug.wrong != bug.right
