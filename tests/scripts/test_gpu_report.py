"""scripts/benchmarks/gpu_report at toy size, and its answer on a machine without a GPU."""

import json
import sys
from pathlib import Path
from runpy import run_path
from types import SimpleNamespace

import jax
import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "benchmarks" / "gpu_report"


@pytest.fixture(scope="module")
def script():
    """The names of the program and its modules."""
    sys.path.insert(0, str(SCRIPT))
    import gpu_page

    yield SimpleNamespace(
        **vars(gpu_page), **{name: run_path(str(SCRIPT / "__main__.py"))[name] for name in ("main", "keep")}
    )
    sys.path.remove(str(SCRIPT))


@pytest.mark.slow
def test_toy_report(script, tmp_path):
    before = jax.config.jax_compilation_cache_dir
    assert script.main(["--toy", "--output", str(tmp_path / "report")]) == 0
    assert jax.config.jax_compilation_cache_dir == before
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["copy_gb_s"]["median"] > 0
    (figures,) = report["columns"].values()
    toys = {key for key, _, _ in script.rows() if not key.endswith(("/8", "/64")) and not key.startswith("attention1/")}
    assert figures.keys() == toys
    assert [key for key, value in figures.items() if "error" in value] == ["attention16/cudnn"]
    assert all(value["low"] <= value["median"] <= value["high"] for value in figures.values() if "error" not in value)
    assert figures["copies"]["median"] == 0
    assert figures["kernel"]["median"] == 0  # a CPU has no kernel
    assert 0 < figures["launches/layer1"]["median"] < figures["launches/round"]["median"]

    lines = (tmp_path / "report.md").read_text().splitlines()
    table = [line for line in lines if line.startswith("|")]
    assert len(table) == len(script.rows()) + 2
    assert sum("not measured" in line for line in table) == len(script.rows()) - len(figures)


def test_failures_stay_in_their_cells(script):
    def broken():
        raise ValueError("a | b\nc")

    figures = {}
    script.keep(figures, "forward", broken)
    assert script.cell(figures, "forward/16") == "ValueError: a \\| b"
    assert script.cell(figures, "round/16") == "not measured"


@pytest.mark.skipif(jax.default_backend() == "gpu", reason="a GPU is here")
def test_without_a_gpu(script, tmp_path, capsys):
    assert script.main(["--output", str(tmp_path / "report")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_empty_table(script, tmp_path):
    """The table of a report that has measured nothing names all goals."""
    assert script.main(["--empty", "--output", str(tmp_path / "report")]) == 0
    text = (tmp_path / "report.md").read_text()
    assert "at least 0.90" in text
    assert "at most 1.05" in text
    assert text.count("not measured") == 1 + 4 * len(script.rows())
    assert not (tmp_path / "report.json").exists()
