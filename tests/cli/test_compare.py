"""``specjax compare``: JSON, the file and the table; each method gets its own options."""

import json

import pytest
from support.command_line import OPTIONS, assert_one_line, kept, models, reuse, specjax_main
from support.models import byte_tokenizer

from specjax.cli import compare as command
from specjax.tools.evaluate.report import caption

pytestmark = pytest.mark.usefixtures("reuse")


def test_compare_prints_a_table_or_json(specjax_main, models, tmp_path, monkeypatch):
    prompts, output = tmp_path / "prompts.jsonl", tmp_path / "out.json"
    prompts.write_text('{"prompt": "def f("}\n{"turns": ["class A:", "more"]}\n{"prompt": "left out"}\n')
    argv = (
        "compare",
        "--model",
        models["target"],
        "--methods",
        "none",
        "--prompts",
        prompts,
        "--num-prompts",
        "2",
        *OPTIONS,
    )
    code, out, err = specjax_main(*argv, "--json", "--output", output)
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found == json.loads(output.read_text())
    assert [method["method"] for method in found["methods"]] == ["none"]
    assert found["settings"]["prompts"] == 2
    assert all(method["equal_to_plain"] for method in found["methods"])

    monkeypatch.setattr(command, "compare", lambda *args, **options: found)
    code, out, _ = specjax_main(*argv)
    assert code == 0
    assert "speed-up" in out
    assert "none" in out


def test_chat_measures_every_turn_after_the_models_own_answers(specjax_main, models, tmp_path, monkeypatch):
    prompts, measured, real = tmp_path / "prompts.jsonl", [], command.compare

    def compare(target, methods, prompts, **options):
        measured.extend(prompts)
        return real(target, methods, prompts, **options)

    monkeypatch.setattr(command, "compare", compare)
    prompts.write_text('{"turns": ["AB", "C"]}\n{"turns": ["left out"]}\n')
    argv = ("compare", "--methods", "none", "--chat", *OPTIONS, "--prompts", prompts)
    code, out, err = specjax_main(*argv, "--model", models["chat"], "--num-prompts", "1", "--json")
    assert (code, err) == (0, "")
    settings = json.loads(out)["settings"]
    assert (settings["chat"], settings["prompts"]) == (True, 2)
    assert "2 turns of conversations" in caption(json.loads(out))

    plain = (*OPTIONS, "--method", "none", "--json")
    code, out, _ = specjax_main("generate", "--chat", "--prompt", "AB", "--model", models["chat"], *plain)
    answer = json.loads(out)["text"]
    assert code == 0 and answer
    assert measured == [byte_tokenizer().encode(text) for text in ("[AB]", f"[AB][{answer}][C]")]


def test_chat_names_what_is_missing_or_wrong(specjax_main, models, tmp_path):
    argv, prompts = ("compare", "--methods", "none", "--chat", *OPTIONS), tmp_path / "prompts.jsonl"
    assert_one_line(specjax_main(*argv, "--model", models["chat"]), "--chat needs --prompts")
    prompts.write_text('{"turns": ["A"]}\n')
    assert_one_line(specjax_main(*argv, "--model", models["target"], "--prompts", prompts), "no chat template")
    prompts.write_text('{"turns": ["A"]}\n{"turns": ["A", ""]}\n')
    found = specjax_main(*argv, "--model", models["chat"], "--prompts", prompts)
    assert_one_line(found, "prompts.jsonl, line 2: turns[1] is empty")
