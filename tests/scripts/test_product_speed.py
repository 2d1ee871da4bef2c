"""scripts/benchmarks/product_speed.py: its page has a row for each case, and bad input gets one line."""

import sys
from pathlib import Path
from runpy import run_path

import numpy as np
import pytest
from page import Result

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "benchmarks" / "product_speed.py"


@pytest.fixture(scope="module")
def script():
    """The names of the program."""
    return run_path(str(SCRIPT))


def test_the_page_has_all_rows(script, monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(script["main"].__globals__, "RESULT", Result("page", folder=tmp_path))
    flags = "--rows 1 3 --width 64 --inner 128 --layers 1 --repeats 2".split()
    monkeypatch.setattr(sys, "argv", ["product_speed.py", *flags])
    script["main"]()
    rows = [line.split("|") for line in (tmp_path / "page.md").read_text().splitlines() if line.startswith("| ")][2:]
    assert [(row[1].strip(), row[2].strip()) for row in rows] == [
        ("bfloat16", "1"), ("bfloat16", "3"), ("float32", "1"), ("float32", "3")
    ]  # fmt: skip
    speeds = np.array([[row[i].split()[0] for i in (3, 4, 6)] for row in rows], float)
    assert np.isfinite(speeds).all()  # of tiny products on a busy machine some round to 0.0


def test_bad_input_gets_one_line_and_exit_code_2(script, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["product_speed.py", "--rows", "0"])
    with pytest.raises(SystemExit) as ended:
        script["main"]()
    assert ended.value.code == 2 and "--rows: must be a whole number from 1 to" in capsys.readouterr().err
