"""scripts/benchmarks/compare_peers: its ratios, its GGUF files, and its answer to missing and unknown peers."""

import argparse
import asyncio
import json
import sys
from pathlib import Path
from runpy import run_path

import httpx
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
    """Plain 4 / 2 and fastest 3 / 1; the form of other bits does not count as plain of these."""
    from contender import Answer, Contender
    from peers_page import summary

    times = {
        Contender("specjax", "bfloat16", "plain", print): 2.0, Contender("specjax", "int4", "ngram", print): 1.0,
        Contender("openvino", "F16", "plain", print): 4.0, Contender("openvino", "Q8_0", "plain", print): 3.5,
        Contender("openvino", "F16", "lookup", print): 3.0,
    }  # fmt: skip
    seconds = {one: [time] * 2 for one, time in times.items()}
    texts = {one: ["a", "c" if one.form == "Q8_0" or one.method == "lookup" else "b"] for one in times}
    answers = {one: [Answer(text, 11, times[one] / 2) for text in texts[one]] for one in times}
    args = argparse.Namespace(num_prompts=2, model="m", label=None)
    report = summary(args, {}, seconds, answers)
    found = {r["kind"]: (r["of"], r["to"], r["whole"]["median"]) for r in report["ratios"]}
    assert found == {
        "openvino, plain, 16 bits": ("specjax bfloat16, plain", "openvino F16, plain", 2),
        "openvino, fastest": ("specjax int4, ngram", "openvino F16, lookup", pytest.approx(3)),
    }
    same = {r["decoding"]: r["same_texts"] for r in report["speeds"]}
    assert same["openvino F16, plain"] == 2 and same["openvino F16, lookup"] == 1
    assert same["openvino Q8_0, plain"] == 2  # no plain decoding of specjax in eight bits to compare with
    assert report["speeds"][0]["alone"]["median"] == 10  # ten tokens after the first, in a second


def test_texts_are_compared_with_plain_decoding_of_the_same_form(script):
    """The file has Q4_1, so ``stored`` has its numbers; no form of specjax has those of Q4_0."""
    from contender import Answer, Contender
    from peers_page import same_texts

    texts = {
        ("specjax", "int4", "plain"): "aaaa", ("specjax", "int4", "ngram"): "aaaa",
        ("specjax", "stored", "plain"): "bbbb", ("specjax", "stored", "ngram"): "bbba",
        ("llama.cpp", "Q4_1", "plain"): "bbaa", ("llama.cpp", "Q4_0", "plain"): "baaa",
    }  # fmt: skip
    answers = {Contender(*one, print): [Answer(text, 1, 1.0) for text in row] for one, row in texts.items()}
    assert [same_texts(one, answers, "model.Q4_1.gguf") for one in answers] == [4, 4, 4, 3, 2, 3]


def test_rows_of_heads_lie_as_llama_cpp_rotates_them(script):
    """Rotating pairs of neighbours equals rotating dimension i with i + D / 2."""
    from gguf_files import _interleaved

    heads, half = 2, 3
    rows = np.random.default_rng(0).normal(size=(heads * 2 * half, 5)).astype(np.float32)
    pairs = _interleaved(rows, heads).reshape(heads, half, 2, 5)
    halves = rows.reshape(heads, 2, half, 5)
    np.testing.assert_array_equal(pairs[:, :, 0], halves[:, 0])
    np.testing.assert_array_equal(pairs[:, :, 1], halves[:, 1])


def test_a_file_of_another_type_has_the_same_numbers_rounded(script, tmp_path):
    """Blocks of 32 with a scale: eight bits differ from the numbers by at most half a step."""
    import gguf
    from gguf_files import written

    exact = written("tiny-python", "BF16", tmp_path)
    rounded = written("tiny-python", "Q8_0", tmp_path)
    of = {file: {t.name: t for t in gguf.GGUFReader(file).tensors} for file in (exact, rounded)}
    assert of[exact].keys() == of[rounded].keys()
    values = {file: gguf.quants.dequantize((t := of[file]["blk.0.ffn_up.weight"]).data, t.tensor_type) for file in of}
    assert of[rounded]["blk.0.ffn_up.weight"].tensor_type.name == "Q8_0"
    assert of[rounded]["output_norm.weight"].tensor_type.name == "F32"
    steps = np.abs(values[exact]).reshape(-1, 32).max(1) / 127
    errors = np.abs(values[exact] - values[rounded]).reshape(-1, 32).max(1)
    assert np.all(errors <= (0.5 + 127 / 2**11) * steps) and errors.max() > 0  # the scale is a float16


def test_an_answer_of_a_server_and_its_latencies(script):
    """The stream of llama.cpp begins with a chunk without text, which is not the first token."""
    import servers

    parts = [None, "Hel", "lo", ""]
    lines = [f"data: {json.dumps({'choices': [{'delta': {'content': part}}]})}\n\n" for part in parts]
    body = "".join([*lines, f"data: {json.dumps({'choices': []})}\n\n", "data: [DONE]\n\n"])
    times = {"first": [], "between": []}

    async def ask() -> str:
        transport = httpx.MockTransport(lambda request: httpx.Response(200, text=body))
        async with httpx.AsyncClient(base_url="http://server", transport=transport) as client:
            return await servers.read_answer(client, [{"role": "user", "content": "Hi"}], 2, times)

    assert asyncio.run(ask()) == "Hello"
    assert times["first"][0] > 0 and 0 <= times["between"][0] < times["first"][0]
    run = {"seconds": 2.0, "tokens": 8, "first": [0.1, 0.3], "between": [0.01, 0.01]}
    assert servers.summary([run]) == {
        "tokens_per_second": [4], "first": pytest.approx([200, 290]), "between": pytest.approx([10, 10])
    }  # fmt: skip


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
    monkeypatch.setitem(sys.modules, "openvino", None)  # as if it were not installed
    script["main"](
        ["--peers", "openvino,llama.cpp", "--forms", "float32", "--methods", "ngram", "--num-prompts", "1"]
        + ["--max-new-tokens", "8", "--converted", str(tmp_path), "--output", str(tmp_path / "peers")]
    )
    assert "openvino is left out" in capsys.readouterr().err
    report = json.loads((tmp_path / "peers.json").read_text())
    assert list(report["left_out"]) == ["openvino"]
    speeds = {r["decoding"]: r["same_texts"] for r in report["speeds"]}
    assert list(speeds)[:3] == ["specjax float32, plain", "specjax float32, ngram", "llama.cpp BF16, plain"]
    assert speeds["specjax float32, ngram"] == 1
    assert "openvino is left out" in (tmp_path / "peers.md").read_text()
