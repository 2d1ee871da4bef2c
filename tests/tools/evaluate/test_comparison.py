"""Prompts, alternating measurements and their reports."""

import dataclasses
import io
import json

import jax
import numpy as np
import pytest
from flax import nnx
from rich.console import Console
from support.models import TINY, byte_tokenizer, language_model, tiny_model
from support.reference import continue_greedily

from specjax import Generator, LanguageModel, RequestError, load
from specjax.checkpoints.heads import load_drafter
from specjax.checkpoints.load import load_tokenizer
from specjax.core.stats import Stats
from specjax.text.result import Result
from specjax.tools.evaluate import compare, datasets, edit_prompts, held_out_prompts, read_prompts, report
from specjax.tools.evaluate import comparison as runner
from specjax.tools.evaluate.comparison import make_generators, select_drafts
from specjax.tools.evaluate.fidelity import difference as find_difference
from specjax.tools.evaluate.fidelity import fidelity, logits_after

METHODS = ["none", "draft_model"]
FIGURES = ("tokens_per_second", "speedup", "mean_acceptance_length", "draft_acceptance_rate")


@pytest.fixture(scope="module")
def target():
    """A model of one layer, which compiles fast."""
    return language_model(tiny_model(num_layers=1), "target")


@pytest.fixture(scope="module")
def generators():
    """The generators that ``measured`` compiled."""
    return []


@pytest.fixture(scope="module")
def measured(target, generators):
    """A comparison with a draft that is the target itself, and the calls of ``progress``."""

    def generator(*args, **options):
        generators.append(Generator(*args, **options))
        return generators[-1]

    calls = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "Generator", generator)
        found = compare(
            target,
            METHODS,
            ["def first(", "import os", "class A:"],
            draft=language_model(target.model, "itself"),
            max_new_tokens=12,
            num_speculative_tokens=3,
            shares=True,
            progress=lambda done, of: calls.append((done, of)),
        )
    return found, calls


def test_every_key_of_the_contract_is_there_and_survives_json(measured):
    found = json.loads(json.dumps(measured[0], allow_nan=False))
    assert [method["method"] for method in found["methods"]] == METHODS
    assert all(isinstance(method[name], float) for method in found["methods"] for name in FIGURES)
    assert {"platform", "device", "cpu", "cores", "python", "jax", "dtype"} <= found["machine"].keys()
    for method in found["methods"]:
        low, high = method["tokens_per_second_interval"]
        assert 0 < low <= method["tokens_per_second"] <= high
        low, high = method["speedup_interval"]
        assert 0 < low <= method["speedup"] <= high
        assert method["equal_to_plain"] is True
        assert method["differences"] == []


def test_drafting_with_the_target_itself_takes_most_of_a_round(measured):
    plain, perfect = (method["drafting_share"] for method in measured[0]["methods"])
    assert all(low <= median <= high for low, median, high in (plain, perfect))
    assert perfect[1] > max(plain[1], 0.1)


def test_plain_is_its_own_baseline_and_a_perfect_draft_is_all_accepted(measured):
    plain, perfect = measured[0]["methods"]
    assert plain["speedup"] == pytest.approx(1)
    assert plain["spec_bench_speedup"] == pytest.approx(1)
    assert plain["mean_acceptance_length"] == 1
    assert plain["target_calls"] == plain["generated"] == 3 * 12
    assert perfect["mean_acceptance_length"] == 4
    assert perfect["target_calls"] == 3 * 3
    assert perfect["acceptance_rate_per_position"] == (1, 1, 1)


def test_progress_counts_every_run_to_the_end(measured):
    calls = measured[1]
    assert calls == [(i, len(calls)) for i in range(1, len(calls) + 1)]
    assert len(calls) >= 3 * len(METHODS)


def test_methods_alternate_in_a_rotating_order():
    order = []

    def generator(name):
        return lambda prompt, **options: order.append((tuple(prompt), name))

    prompts = [[1] * 9, [2] * 9, [3] * 9]
    runs = runner.alternate_runs({"a": generator("a"), "b": generator("b")}, prompts, 4, 2, lambda done, of: None)
    warm, timed = order[:2], order[2:]
    assert len(warm) == 2
    assert len(timed) == 2 * 2 * 3
    assert [prompt for prompt, _ in timed[::2]] == [prompt for prompt, _ in timed[1::2]]
    assert {name for _, name in timed[::2]} == {"a", "b"}
    assert all(len(results) == 2 for results in runs["a"] + runs["b"])


def test_report_shows_all_methods_and_the_machine(measured):
    console = Console(width=160, file=io.StringIO())
    console.print(report.table(measured[0]))
    for shown in (console.file.getvalue(), report.markdown(measured[0])):
        assert all(method in shown for method in METHODS)
        assert "100 100 100" in shown
        assert measured[0]["machine"]["dtype"] in shown
    assert "| --- | --- |" in report.markdown(measured[0])


def result(ids, seconds=1.0) -> Result:
    return Result(
        "", ids, [5, 6, 7], "length", Stats(len(ids), 0, 0, (), len(ids), 0.0, seconds, 0.0), [False] * len(ids)
    )


def test_a_difference_is_reported_with_its_place_and_logit_margin(target):
    logits = logits_after(target, [5, 6, 7, 9], 3)
    best, other = int(logits.argmax()), int(logits.argmin())
    summary = runner._summarise("ngram", [[result([9, other, 1])]], [[result([9, best, 1])]], target)
    assert not summary["equal_to_plain"]
    (difference,) = summary["differences"]
    assert (difference["prompt"], difference["token"], difference["tie"]) == (0, 1, False)
    assert difference["margin"] == pytest.approx(float(logits[best] - logits[other]))
    assert "more than rounding" in summary["note"]
    assert "1 (0 ties)" in report._equality(summary)


def test_equal_logits_are_a_tie(target):
    graph, params = nnx.split(tiny_model(num_layers=1))
    flat = nnx.merge(graph, jax.tree.map(lambda x: x * 0 + 1, params))
    difference = find_difference(0, result([4]), result([8]), language_model(flat))
    assert difference == {"prompt": 0, "token": 0, "margin": 0.0, "tie": True}


def test_margin_comes_from_the_same_logits_as_decoding(target, measured, generators):
    """The token that plain decoding chose is the likeliest of the forward without a cache."""
    plain = generators[0]([5, 6, 7, 8], max_new_tokens=4, ignore_eos=True)
    ids = plain.prompt_token_ids
    for token in plain.token_ids:
        assert int(logits_after(target, ids, 4).argmax()) == token
        ids = [*ids, token]


def test_lossy_texts_are_measured_against_the_targets_choices(target):
    """The second token is the third likeliest after the text before it, the others are the target's choices."""
    ids = [5, 6, 7]
    for rank in (0, 2, 0):
        ids.append(int(np.argsort(-logits_after(target, ids, 3))[rank]))
    logits = np.sort(logits_after(target, ids[:4], 3))
    found = fidelity(target, [dataclasses.replace(result(ids[3:]), prompt_token_ids=ids[:3])])
    assert found["agreement"] == pytest.approx(2 / 3)
    assert found["nats"] == pytest.approx((logits[-1] - logits[-3]) / 3, rel=1e-4)


@pytest.mark.slow
def test_a_lossy_rule_reports_its_distance_and_is_no_defect(target):
    draft = language_model(tiny_model(num_layers=1, seed=3), "other")
    found = compare(target, ["draft_model"], ["def f(", "class A:"], draft=draft, rule="soft_match=1", max_new_tokens=8)
    plain, soft = found["methods"]
    assert plain["fidelity"]["agreement"] == 1 and plain["note"] is None
    assert soft["fidelity"]["agreement"] < 0.5 and soft["fidelity"]["nats"] > 0
    assert "draft_model is lossy" in soft["note"] and "report it" not in soft["note"]
    assert found["settings"]["rule"] == "soft_match=1" and "rule soft_match=1" in report.caption(found)


def test_a_slower_method_gets_a_note(target):
    summary = runner._summarise("ngram", [[result([3], 2.0)]] * 2, [[result([3], 1.0)]] * 2, target)
    assert summary["speedup"] == pytest.approx(0.5)
    assert "slower than plain" in summary["note"]
    assert runner._summarise("none", [[result([3])]], [[result([3])]], target)["note"] is None


def test_totals_over_prompts_and_medians_over_repeats(target):
    runs = [[result([3] * 4, s) for s in (1.0, 2.0, 90.0)], [result([3] * 8, 4.0)] * 3]
    summary = runner._summarise("none", runs, runs, target)
    assert summary["tokens_per_second"] == pytest.approx(12 / 6)
    assert summary["spec_bench_tokens_per_second"] == pytest.approx((4 / 2 + 8 / 4) / 2)
    assert runner._summarise("none", runs[:1], runs[:1], target)["tokens_per_second_interval"] is None


def test_a_head_drafts_for_its_own_method_and_for_auto():
    pair = load("tiny-python", dtype="float32")
    eagle, medusa = (load_drafter(f"tiny-python-{kind}", pair) for kind in ("eagle3", "medusa"))
    assert select_drafts("eagle3", (medusa, eagle)) == (eagle,)
    assert select_drafts("auto", (medusa, eagle)) == (eagle,)  # a Medusa head may not rest
    assert select_drafts("auto", (eagle, pair)) == (pair,)
    assert select_drafts("draft_model", (eagle, pair)) == (pair,)
    assert select_drafts("ngram", (eagle, pair)) == ()
    generators = make_generators(pair, ["auto"], [eagle], {})
    assert generators["auto"].drafts == (eagle,)


def test_prompts_that_leave_no_room_are_refused(target):
    with pytest.raises(RequestError, match="prompt 2 has 256 tokens"):
        compare(target, ["none"], ["a", "b" * TINY.context])
    with pytest.raises(RequestError, match="empty"):
        compare(target, ["none"], [])


def test_read_prompts_takes_the_three_formats(tmp_path):
    path = tmp_path / "prompts.jsonl"
    lines = [
        {"prompt": "plain é"},
        {"question_id": 81, "turns": ["first", "second"]},
        {"task_id": "HumanEval/0", "prompt": "def f("},
    ]
    path.write_text(
        "\ufeff" + "\n\n".join(json.dumps(line, ensure_ascii=False) for line in lines) + "\r\n", encoding="utf-8"
    )
    assert read_prompts(path) == ["plain é", "first", "def f("]


BAD_FILES = {
    "not JSON": (b'{"prompt": "a"}\n{"prompt": \n', "line 2"),
    "no known key": (b'{"prompt": "a"}\n\n{"text": "b"}\n', "line 3"),
    "not an object": (b'["prompt"]\n', "line 1"),
    "not a string": (b'{"prompt": 3}\n', "line 1"),
    "no turns": (b'{"turns": []}\n', "line 1"),
    "empty prompt": (b'{"turns": ["a"]}\n{"turns": [" "]}', "line 2"),
    "not UTF-8": (b'{"prompt": "a"}\n{"prompt": "\xff"}', "line 2"),
    "empty file": (b"\n", "line 1"),
}


@pytest.mark.parametrize("kind", BAD_FILES)
def test_read_prompts_names_file_and_line(tmp_path, kind):
    content, line = BAD_FILES[kind]
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(content)
    with pytest.raises(RequestError, match=f"prompts.jsonl, {line}: ") as caught:
        read_prompts(path)
    assert "\n" not in str(caught.value)


def test_read_prompts_of_a_missing_file_or_a_directory(tmp_path):
    for path in (tmp_path / "absent.jsonl", tmp_path):
        with pytest.raises(RequestError, match="cannot be read"):
            read_prompts(path)


def test_held_out_prompts_end_with_a_definition_and_repeat(monkeypatch):
    paths, tokenizer = datasets.standard_library(held_out=True)[:12], byte_tokenizer()
    monkeypatch.setattr(datasets, "standard_library", lambda held_out: paths)
    prompts = held_out_prompts(tokenizer, 20, 400)
    assert prompts[:10] == held_out_prompts(tokenizer, 10, 400)
    assert len(set(prompts)) == 20
    for prompt in prompts:
        last = prompt.splitlines()[-1].split()
        assert {"def", "class"} & set(last[:2])
        assert prompt.endswith("\n")
        assert 2 <= len(prompt.splitlines())
        assert len(tokenizer.encode(prompt)) <= 400
    with pytest.raises(RequestError, match="name a prompts file"):
        held_out_prompts(tokenizer, 10**7, 400)


def test_edit_prompts_are_texts_of_the_target_that_begin_again():
    tokenizer = load_tokenizer("tiny-python")[0]
    model = tiny_model(num_layers=1, vocab_size=len(tokenizer))
    target = LanguageModel(model, model.config, tokenizer, "target")
    pieces = held_out_prompts(tokenizer, 2, 24)
    written = continue_greedily(model, [tokenizer.encode(piece) for piece in pieces], 24)
    for piece, ids, prompt in zip(pieces, written, edit_prompts(target, 2, 24), strict=True):
        first, second = prompt.split("\n\n# second version\n")
        assert second == piece and first == piece + tokenizer.decode(ids)


def test_tables_are_narrow_enough_to_read():
    """Long names, intervals and many positions: a Markdown row is a line of an editor, and the terminal wraps no cell."""
    figures = dict(
        tokens_per_second=123.4, tokens_per_second_interval=[111.1, 133.3], speedup=2.59, speedup_interval=[2.28, 2.95],
        mean_acceptance_length=4.2, drafted_per_call=59.0, drafting_share=[0.1, 0.2, 0.3], target_calls=999, note=None,
        acceptance_rate_per_position=(0.9,) * 16, differences=[{"margin": None, "tie": False}] * 10,
    )  # fmt: skip
    settings = dict(model="tiny-python", draft="tiny-python-draft", prompts=16, max_new_tokens=128, options={})
    machine = dict(dtype="bfloat16", devices=1, device="cpu", cpu="a processor", cores=2, jax="0.10.2")
    found = dict(methods=[dict(figures, method="token_recycling")], settings=settings, machine=machine)
    assert max(len(line) for line in report.markdown(found).splitlines() if line.startswith("|")) <= 110
    console = Console(width=120, file=io.StringIO())
    console.print(report.table(found))
    rows = [line for line in console.file.getvalue().splitlines() if line.startswith("│")]
    assert len(rows) == 1 and "2.59 (2.28 to 2.95)" in rows[0] and "10 (0 ties)" in rows[0]
