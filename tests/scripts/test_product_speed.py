"""scripts/product_speed.py: every form that it times is the product, and its page has a row for each case."""

import sys
from pathlib import Path
from runpy import run_path

import jax.numpy as jnp
import numpy as np
import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "product_speed.py"


@pytest.fixture(scope="module")
def script():
    """The names of the program."""
    return run_path(str(SCRIPT))


def test_parts_are_the_product(script):
    random = np.random.default_rng(0)
    x, weight = (jnp.asarray(random.normal(size=(n, 8)), jnp.bfloat16) for n in (3, 12))
    np.testing.assert_allclose(script["in_parts"](x, weight), np.float64(x) @ np.float64(weight).T, rtol=1e-5)


def test_the_page_has_all_rows(script, monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(script["main"].__globals__, "PAGE", tmp_path / "page.md")
    flags = "--rows 1 3 --width 64 --inner 128 --layers 1 --repeats 2".split()
    monkeypatch.setattr(sys, "argv", ["product_speed.py", *flags])
    script["main"]()
    rows = [line.split("|") for line in (tmp_path / "page.md").read_text().splitlines() if line.startswith("| ")][1:]
    assert [(row[1].strip(), row[2].strip()) for row in rows] == [
        ("bfloat16", "1"), ("bfloat16", "3"), ("float32", "1"), ("float32", "3")
    ]  # fmt: skip
    speeds = np.array([[row[i].split()[0] for i in (3, 4, 6)] for row in rows], float)
    assert (speeds > 0).all()
