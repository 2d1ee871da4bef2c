"""``specjax verify``: it agrees with an exact method, and finds planted faults."""

import json

import pytest
from support.command_line import kept, models, reuse, specjax_main
from support.models import byte_tokenizer

from specjax.requests import chat
from specjax.tools.evaluate import lossless
from specjax.tools.evaluate.planted_faults import FAULTS

pytestmark = pytest.mark.usefixtures("reuse")


@pytest.fixture(scope="module")
def verified(models, tmp_path_factory):
    prompts = tmp_path_factory.mktemp("verify") / "prompts.jsonl"
    prompts.write_text('{"prompt": "def f("}\n')
    pair = ("--model", models["target"], "--draft", models["draft"], "--num-speculative-tokens", "2")
    return (
        "verify",
        *pair,
        "--prompts",
        prompts,
        "--max-new-tokens",
        "16",
        "--samples",
        "1024",
        "--tokens",
        "3",
        "--top-k",
        "3",
    )


def test_verify_agrees(specjax_main, verified):
    code, out, err = specjax_main(*verified)
    assert (code, err) == (0, "")
    assert "agrees with plain decoding" in out and "greedy: 1 of 1 texts equal" in out


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_verify_finds_a_planted_fault(specjax_main, verified, fault):
    code, out, err = specjax_main(*verified, "--inject", fault, "--json")
    report = json.loads(out)
    assert (code, err, report["agree"]) == (1, "", False)
    assert report["sampled"]["p_value"] < 1e-3 and report["greedy"]["agree"]


def test_chat_checks_every_turn_up_to_the_end_of_turn_token(specjax_main, models, tmp_path, monkeypatch):
    calls, prompts = [], tmp_path / "prompts.jsonl"
    answer = {"role": "assistant", "content": "B"}
    messages = [{"role": "user", "content": "A"}, answer, {"role": "user", "content": "C"}]
    prompts.write_text("\n".join([json.dumps({"messages": messages})] * 5))
    monkeypatch.setattr(chat, "end_of_turn_ids", lambda tokenizer: (7,))
    monkeypatch.setattr(
        lossless, "verify", lambda plain, method, *args, **options: calls.append((args, options)) or {"agree": True}
    )
    argv = ("verify", "--chat", "--prompts", prompts, "--model", models["chat"], "--method", "ngram", "--json")
    for flags in ((), ("--stop-token-id", "5", "--num-prompts", "1"), ("--ignore-eos",)):
        assert specjax_main(*argv, *flags)[0] == 0
    turns = [byte_tokenizer().encode(text) for text in ("[A]", "[A][B][C]")]
    assert [args for args, _ in calls] == [(turns * 4,), (turns,), (turns * 4,)]
    assert [options.get("stop_token_ids") for _, options in calls] == [[7], [5, 7], None]
