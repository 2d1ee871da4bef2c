"""scripts/benchmarks/compare_peers: its ratios, its layout for llama.cpp, and its answer to missing and unknown peers."""

import argparse
import json
import sys
from pathlib import Path
from runpy import run_path

import numpy as np
import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "benchmarks" / "compare_peers"


@pytest.fixture(scope="module")
def script():
    """The names of the program."""
    sys.path.insert(0, str(SCRIPT))
    yield run_path(str(SCRIPT / "__main__.py"))
    sys.path.remove(str(SCRIPT))


def test_ratios_of_known_times(script):
    """Plain 4 / 2 and fastest 3 / 1; the peer that is slower with a draft counts with its plain decoding."""
    seconds = {"specjax none": 2.0, "specjax ngram": 1.0, "openvino plain": 4.0, "openvino draft, 3 tokens": 3.0}
    tokens = {name: [[1, 2], [3, 4]] for name in seconds} | {"openvino plain": [[1, 2], [3, 5]]}
    measured = {name: np.full(2, value) for name, value in seconds.items()}
    report = script["summary"](argparse.Namespace(num_prompts=2, model="m", label=None), {}, measured, tokens)
    found = {(r["peer"], r["kind"]): (r["of"], r["to"], r["median"]) for r in report["ratios"]}
    assert found["openvino", "plain"] == ("specjax none", "openvino plain", 2)
    assert found["openvino", "fastest"] == ("specjax ngram", "openvino draft, 3 tokens", 3)
    assert found["specjax", "fastest over plain"] == ("specjax ngram", "specjax none", 2)
    assert {r["decoding"]: r["same_texts"] for r in report["tokens_per_second"]} == {
        "specjax none": 2, "specjax ngram": 2, "openvino plain": 1, "openvino draft, 3 tokens": 2
    }  # fmt: skip


def test_rows_of_heads_lie_as_llama_cpp_rotates_them(script):
    """Rotating pairs of neighbours equals rotating dimension i with i + D / 2."""
    from llama_cpp_peer import _interleaved

    heads, half = 2, 3
    rows = np.random.default_rng(0).normal(size=(heads * 2 * half, 5)).astype(np.float32)
    pairs = _interleaved(rows, heads).reshape(heads, half, 2, 5)
    halves = rows.reshape(heads, 2, half, 5)
    np.testing.assert_array_equal(pairs[:, :, 0], halves[:, 0])
    np.testing.assert_array_equal(pairs[:, :, 1], halves[:, 1])


@pytest.mark.parametrize(
    "flags, line",
    [
        (["--peers", "vllm"], "the peer 'vllm' is unknown; use one of openvino, llama.cpp, transformers"),
        (["--model", "missing"], "missing"),
    ],
)
def test_bad_input_gets_one_line_and_exit_code_2(script, flags, line, capsys):
    with pytest.raises(SystemExit) as ended:
        script["main"](flags)
    error = capsys.readouterr().err
    assert ended.value.code == 2 and line in error and error.count("\n") == 1


@pytest.mark.slow
def test_a_missing_peer_is_left_out(script, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "llama_cpp", None)  # as if it were not installed
    script["main"](
        ["--peers", "llama.cpp", "--methods", "ngram", "--num-prompts", "1", "--max-new-tokens", "8"]
        + ["--output", str(tmp_path / "peers")]
    )
    assert "llama.cpp is left out" in capsys.readouterr().err
    report = json.loads((tmp_path / "peers.json").read_text())
    assert list(report["left_out"]) == ["llama.cpp"]
    assert [r["decoding"] for r in report["tokens_per_second"]] == ["specjax none", "specjax ngram"]
    assert "llama.cpp is left out" in (tmp_path / "peers.md").read_text()
