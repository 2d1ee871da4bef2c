"""scripts/benchmarks/experts.py: its page has a row for each case, with the expected and the compiled bytes."""

import sys
from pathlib import Path
from runpy import run_path

import pytest
from page import Result

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "benchmarks" / "experts.py"


@pytest.fixture(scope="module")
def script():
    """The names of the program."""
    return run_path(str(SCRIPT))


@pytest.mark.slow
def test_the_page_has_all_rows(script, monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(script["main"].__globals__, "RESULT", Result("page", folder=tmp_path))
    flags = "--nodes 1 3 --count 6 --chosen 2 --width 256 --units 128 --layers 1 --repeats 2".split()
    monkeypatch.setattr(sys, "argv", ["experts.py", *flags])
    script["main"]()
    rows = [line.split("|") for line in (tmp_path / "page.md").read_text().splitlines() if line.startswith("| ")][2:]
    assert [(row[1].strip(), row[2].strip()) for row in rows] == [
        ("bfloat16", "1"), ("bfloat16", "3"), ("float32", "1"), ("float32", "3")
    ]  # fmt: skip
    for row in rows:
        assert float(row[3]) == pytest.approx(6 * (1 - (2 / 3) ** int(row[2])), abs=0.06)
        assert 2 <= int(row[4]) <= 2 * int(row[2])
        assert float(row[6]) == pytest.approx(int(row[4]) / float(row[3]) * float(row[5]), rel=0.3)


def test_bad_input_gets_one_line_and_exit_code_2(script, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["experts.py", "--nodes", "0"])
    with pytest.raises(SystemExit) as ended:
        script["main"]()
    assert ended.value.code == 2 and "--nodes: must be a whole number from 1 to" in capsys.readouterr().err
