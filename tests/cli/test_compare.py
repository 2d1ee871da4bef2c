"""``specjax compare``: JSON, the file and the table; each method gets its own options."""

import json

import pytest
from support.command_line import OPTIONS, kept, models, reuse, specjax_main

from specjax import evaluation

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

    monkeypatch.setattr(evaluation, "compare", lambda *args, **options: found)
    code, out, _ = specjax_main(*argv)
    assert code == 0
    assert "speed-up" in out
    assert "none" in out
