"""scripts/benchmarks/scaling.py: the roofline by hand, and the page and the picture of a report."""

from pathlib import Path
from runpy import run_path
from types import SimpleNamespace

import jax
import pytest
from support.models import TINY, tiny_model

script = run_path(str(Path(__file__).resolve().parents[2] / "scripts" / "benchmarks" / "scaling.py"))
SIZE = 61 * 32 * 2 + 32 + 2 * (32 * 64 + 32 * 32 + 3 * 32 * 48 + 2 * 32)
"""Parameters of ``TINY``: embedding, output matrix, and two layers with two key heads."""


@pytest.mark.parametrize("batch, context, nodes", [(1, 10, 1), (3, 100, 4)])
def test_roofline(batch, context, nodes):
    """Bytes of float32 weights and keys, and two operations for each weight and node, and four for each score."""
    target = SimpleNamespace(model=tiny_model(), config=TINY, kv_quantize=None)
    assert sum(leaf.size for leaf in jax.tree.leaves(target.model)) == SIZE
    read = 4 * SIZE + 4 * 2 * 2 * 2 * 8 * context * batch
    computed = (2 * SIZE + 4 * 2 * 4 * 8 * context) * nodes * batch
    slow_memory = dict(bytes_per_second=1.0, operations_per_second=1e9)
    slow_cores = dict(bytes_per_second=1e9, operations_per_second=1.0)
    assert script["roofline"](target, slow_memory, batch, context, nodes) == pytest.approx(read)
    assert script["roofline"](target, slow_cores, batch, context, nodes) == pytest.approx(computed)


def test_page_and_picture():
    point = dict(nodes=[1, 6], verify_ms=[[9, 10, 11], [11, 12, 13]], roofline_ms=[5.0, 6.0], draft_model_ms=20.0)
    sweep = lambda axis: [dict(point, speedup=1.5, **{axis: size}) for size in (1, 2)]
    report = dict(
        settings=dict(label="m", draft="d", num_speculative_tokens=5),
        tokens_per_round=3.0,
        bytes_per_second=2e10,
        operations_per_second=3e11,
        batch=sweep("batch"),
        context=sweep("context"),
        nodes=point,
    )
    page = script["describe"](report, "picture.png")
    assert "| 2 | 10.0 | 5.0 | 20.0 | 1.50 |" in page and "| 6 | 12.0 | 1.20 | 6.0 |" in page
    assert "**The acceptance is forced**: 3.00 tokens a round" in page and "20.0 GB/s and 300 GFLOP/s" in page
    panels = script["draw"](report).axes
    assert [axes.get_xlabel() for axes in panels] == ["batch", "context", "nodes"]
    assert [len(axes.get_lines()) >= 2 for axes in panels] == [True] * 3
