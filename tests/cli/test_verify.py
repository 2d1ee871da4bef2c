"""``specjax verify``: it agrees with an exact method, and finds planted faults."""

import json

import pytest
from support.command_line import kept, models, reuse, specjax_main

from specjax.evaluation.faults import FAULTS

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
