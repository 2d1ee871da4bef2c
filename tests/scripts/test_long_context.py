"""scripts/benchmarks/long_context.py: the bytes of a round by hand, and the page of a report."""

from pathlib import Path
from runpy import run_path

import pytest
from page import measured
from support.models import TINY

from specjax.drafters import DraftModel, PartialCache, Plain

script = run_path(str(Path(__file__).resolve().parents[2] / "scripts" / "benchmarks" / "long_context.py"))
READ = 2 * (61 * 32 + 2 * (32 * 64 + 32 * 32 + 3 * 32 * 48))
"""Bytes of the bfloat16 weights of ``TINY`` that a token reads: the output matrix and two layers."""
ROW = 2 * 2 * 2 * 2 * 8
"""Bytes of the keys and values of a position: two layers with two key heads of eight numbers."""


@pytest.mark.parametrize("devices", [1, 2])
def test_bytes_of_a_round(devices):
    """Four drafts and one verify pass; the part is gathered once, and the mean keys are read once."""
    by_hand = lambda drafter, drafts=(): script["by_hand"](TINY, drafter, drafts, 1000, 3, devices) * devices
    assert by_hand(PartialCache(draft_window=28)) == 5 * READ + 3 * ROW * (4 * 32 + 2 * 32 + 1000)
    part = PartialCache(draft_window=28, cache_chunks=2, chunk_size=10)
    assert by_hand(part) == 5 * READ + 3 * ROW * (4 * 52 + 2 * 52 + 1000 + 1000 / 10 / 2)
    drafted = READ + 3 * ROW * 1000 + devices * 4 * (READ + 3 * ROW * 1000)  # each device holds the whole draft
    assert by_hand(DraftModel(4), (TINY,)) == drafted
    assert by_hand(Plain()) == READ + 3 * ROW * 1000
    assert script["by_hand"](TINY, Plain(), (), 1000, 3, 1, 4) == READ + 2 * 3 * ROW * 1000  # float32 keys and values


def test_page():
    conditions = measured(["tiny-python"])
    one = dict(accepted=0.5, tokens=3.0, passes=4.0)
    runs = {name: [2.0, 1.5, 3.0] for name in script["ROUNDS"]}
    moved, speedup = dict.fromkeys(runs, 4e9) | {"none": 2e9}, dict.fromkeys(runs, 2.0)
    target = dict(about=dict(conditions=conditions, model="m", draft="d", count=16, weights=5e8))
    plan = dict(device="h100:1", context=32768, batch=1, draft="window of 512", bytes=1e9, bytes_by_hand=2e9)
    report = {
        "acceptance": {
            "about": dict(conditions=conditions, short=[9], long=[20]),
            "window of 32": dict(positions=36, contexts=[one, one]),
        },
        "rounds": {"m": target | {"1": dict(ms=runs, bytes=moved, speedup=speedup)}},
        "plans": {
            "about": dict(conditions=conditions),
            "a plan": plan | dict(copies=0, ms=3.0, plain_ms=4.0, speedup=1.5),
        },
    }
    text = "\n".join(script["sections_of"](report))
    assert "| window of 32 | 36 | 50.0% | 3.00 | 4.00 | 50.0% | 3.00 | 4.00 |" in text
    assert (
        "| 1 | draft_model | 4.00 | 2.0 (1.5 to 3.0) | 1.68 | 2.00 |" in text  # 3.36 tokens for twice the bytes
        and "| h100:1 | 32,768 | 1 | window of 512 | 1.0 | 2.0 | 3.0 | 4.0 | 1.50 |" in text
    )
    assert script["sections_of"]({"rounds": {}}) == []
