"""The command line: what it prints, and that bad input gets one line, exit code 2 and no traceback."""

import io
import json
import os
import subprocess
import sys

import pytest
from conftest import TINY, byte_tokenizer, disturbed, language_model, tiny_model

import specjax
from specjax import LanguageModel
from specjax import evaluation as bench
from specjax.cli.main import main
from specjax.evaluation.faults import FAULTS

OPTIONS = ("--max-new-tokens", "10", "--num-speculative-tokens", "3")
GENERATE = (*OPTIONS, "--capacity", "300", "--ignore-eos")
CONFIG = "config.json"


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """Directories of models of one layer, so that there is little to compile: a pair, a draft that shares no letter with them, and one of weights that give NaN."""
    root = tmp_path_factory.mktemp("models")
    small = tiny_model(num_layers=1)
    saved = {
        "target": language_model(small),
        "draft": language_model(disturbed(small, 0.3)),
        "foreign": LanguageModel(small, small.config, byte_tokenizer(first=100), "foreign"),
        "nan": language_model(tiny_model(num_layers=1, sharpness=float("nan"))),
    }
    for name, model in saved.items():
        specjax.save(model, root / name)
    return {name: str(root / name) for name in saved}


@pytest.fixture
def specjax_main(capsys):
    """Runs the command in this process: exit code, stdout and stderr."""

    def run(*argv):
        try:
            code = main([str(a) for a in argv])
        except SystemExit as end:
            code = end.code
        out, err = capsys.readouterr()
        return code, out, err

    return run


@pytest.fixture(scope="module")
def kept():
    """Generators and models by their arguments, so that the tests of this module compile each only once."""
    return {}


@pytest.fixture(autouse=True)
def _reuse(monkeypatch, kept):
    real_load, real_generator = specjax.checkpoints.load.load, specjax.generate.__globals__["Generator"]

    def load(name, **options):
        key = ("load", str(name), *options.items())
        if key not in kept:
            kept[key] = real_load(name, **options)
        return kept[key]

    def generator(target, method=None, draft=None, **options):
        key = (id(target), method, str(draft), *options.items())
        if key not in kept:
            kept[key] = real_generator(target, method, draft, **options)
        return kept[key]

    monkeypatch.setattr(sys.modules["specjax.checkpoints.load"], "load", load)
    monkeypatch.setattr(sys.modules["specjax.generate"], "Generator", generator)


def test_generate_json_is_one_object(specjax_main, models):
    code, out, err = specjax_main("generate", "--model", models["target"], "--prompt", "def f(", *GENERATE, "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert list(found) == ["text", "token_ids", "prompt_token_ids", "finish_reason", "stats"]
    assert len(found["token_ids"]) == 10
    assert found["finish_reason"] == "length"
    assert found["prompt_token_ids"] == byte_tokenizer().encode("def f(")
    wanted = "target_calls drafted accepted mean_acceptance_length draft_acceptance_rate acceptance_rate_per_position"
    assert {*wanted.split(), "prefill_seconds", "decode_seconds", "compile_seconds", "tokens_per_second"} <= found["stats"].keys()


@pytest.fixture(scope="module")
def speculative(models):
    return ("generate", "--model", models["target"], "--draft", models["draft"], "--prompt", "def f(", *GENERATE)


def test_a_draft_alone_chooses_draft_model_and_keeps_the_output(specjax_main, models, speculative):
    _, plain, _ = specjax_main("generate", "--model", models["target"], "--prompt", "def f(", *GENERATE, "--json")
    code, out, err = specjax_main(*speculative, "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["token_ids"] == json.loads(plain)["token_ids"]
    assert json.loads(out)["stats"]["drafted"] > 0


def test_generate_prints_the_text_and_the_figures_apart(specjax_main, speculative):
    _, out, _ = specjax_main(*speculative, "--json")
    code, text, err = specjax_main(*speculative)
    assert code == 0
    assert text == json.loads(out)["text"] + "\n"
    for name in ("Mean acceptance length", "Accepted", "Drafted", "Per-position acceptance rate", "Avg Draft acceptance rate", "tokens/s"):
        assert name in err


def test_stream_prints_the_same(specjax_main, speculative):
    _, whole, _ = specjax_main(*speculative)
    code, streamed, err = specjax_main(*speculative, "--stream")
    assert (code, streamed) == (0, whole)
    assert "Mean acceptance length" in err
    _, as_json, pieces = specjax_main(*speculative, "--stream", "--json")
    assert pieces == whole
    assert json.loads(as_json)["text"] + "\n" == whole


def test_several_prompts_and_stdin_are_one_batch(specjax_main, models, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"def f(\n")))
    argv = ("generate", "--model", models["target"], *GENERATE, "--json", "--prompt")
    _, one, _ = specjax_main(*argv, "def f(")
    code, out, _ = specjax_main(*argv, "-", "--prompt", "x")
    first, second = json.loads(out)
    assert code == 0
    assert first["token_ids"] == json.loads(one)["token_ids"]
    assert second["prompt_token_ids"] == byte_tokenizer().encode("x")


def test_compare_prints_a_table_or_json(specjax_main, models, tmp_path, monkeypatch):
    prompts, output = tmp_path / "prompts.jsonl", tmp_path / "out.json"
    prompts.write_text('{"prompt": "def f("}\n{"turns": ["class A:", "more"]}\n{"prompt": "left out"}\n')
    argv = ("compare", "--model", models["target"], "--methods", "none", "--prompts", prompts, "--num-prompts", "2", *OPTIONS)
    code, out, err = specjax_main(*argv, "--json", "--output", output)
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found == json.loads(output.read_text())
    assert [method["method"] for method in found["methods"]] == ["none"]
    assert found["settings"]["prompts"] == 2
    assert all(method["equal_to_plain"] for method in found["methods"])

    monkeypatch.setattr(bench, "compare", lambda *args, **options: found)
    code, out, _ = specjax_main(*argv)
    assert code == 0
    assert "speed-up" in out
    assert "none" in out


SOME_OPTIONS = (
    "--temperature", "0.8", "--top-k", "40", "--min-p", "0.01", "--repetition-penalty", "1.2", "--presence-penalty", "0.1",
    "--frequency-penalty", "0.1", "--min-new-tokens", "2", "--logit-bias", '{"5": 1.5}', "--suppress-token", "7", "--suppress-token", "8",
    "--stop-token-id", "9", "--regex", "[!-Z]+", "--logprobs", "2", "--seed", "3",
)  # fmt: skip


def test_options_reach_the_generator(specjax_main, models):
    argv = ("generate", "--model", models["target"], "--prompt", "def f(", *OPTIONS, "--capacity", "300")
    code, out, err = specjax_main(*argv, *SOME_OPTIONS, "--stop", "!", "--stop", "#", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    options = dict(
        temperature=0.8, top_k=40, min_p=0.01, repetition_penalty=1.2, presence_penalty=0.1, frequency_penalty=0.1, min_new_tokens=2,
        logit_bias={5: 1.5}, suppressed_tokens=[7, 8], stop_token_ids=[9], regex="[!-Z]+", logprobs=2, seed=3, stop=["!", "#"],
    )  # fmt: skip
    wanted = specjax.Generator(specjax.load(models["target"]), capacity=300)("def f(", max_new_tokens=10, **options)
    assert (found["token_ids"], found["text"]) == (wanted.token_ids, wanted.text)
    assert found["logprobs"] == pytest.approx(wanted.logprobs) and [len(top) for top in found["top_logprobs"]] == [2] * len(
        wanted.token_ids
    )
    plain = specjax_main(*argv, "--json")[1]
    assert json.loads(plain)["token_ids"] != found["token_ids"]


@pytest.fixture(scope="module")
def verified(models, tmp_path_factory):
    prompts = tmp_path_factory.mktemp("verify") / "prompts.jsonl"
    prompts.write_text('{"prompt": "def f("}\n')
    pair = ("--model", models["target"], "--draft", models["draft"], "--num-speculative-tokens", "2")
    return ("verify", *pair, "--prompts", prompts, "--max-new-tokens", "16", "--samples", "1024", "--tokens", "3", "--top-k", "3")


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


def bad_cases(models, tmp_path) -> dict:
    """Arguments, and words of the one line that they get."""
    good = ("generate", "--model", models["target"], "--prompt", "x")
    draft = (*good, "--method", "draft_model", "--draft")
    verify = ("verify", "--model", models["target"], "--draft", models["draft"])
    lines = tmp_path / "prompts.jsonl"
    lines.write_text('{"prompt": "a"}\nnot json\n')
    return {
        "no command": ((), "command"),
        "unknown option": ((*good, "--nonsense"), "--nonsense"),
        "not a number": ((*good, "--max-new-tokens", "many"), "--max-new-tokens"),
        "no prompt": (("generate", "--model", models["target"]), "--prompt"),
        "unknown model": (("generate", "--model", "no-such-model", "--prompt", "x"), "no-such-model"),
        "no config.json": (("generate", "--model", directory(tmp_path, models, CONFIG, None), "--prompt", "x"), CONFIG),
        "corrupt weights": (("generate", "--model", directory(tmp_path, models, "model.safetensors", b"junk"), "--prompt", "x"), "corrupt"),
        "truncated weights": (("generate", "--model", truncated(tmp_path, models), "--prompt", "x"), "truncated"),
        "unsupported family": (
            ("generate", "--model", directory(tmp_path, models, CONFIG, b'{"model_type": "mamba"}'), "--prompt", "x"),
            "mamba",
        ),
        "unsupported option": (("generate", "--model", changed_config(tmp_path, models, hidden_act="relu"), "--prompt", "x"), "hidden_act"),
        "config is not JSON": (("generate", "--model", directory(tmp_path, models, CONFIG, b"{"), "--prompt", "x"), CONFIG),
        "draft of another alphabet": ((*draft, models["foreign"]), "share 0 of 59 tokens"),
        "merged of one draft": ((*good, "--method", "merged", "--draft", models["draft"]), "needs 2 drafts"),
        "unknown draft": ((*draft, "no-such-draft"), "no-such-draft"),
        "draft_model without a draft": ((*good, "--method", "draft_model"), "--draft"),
        "ngram with a draft": ((*good, "--method", "ngram", "--draft", models["draft"]), "takes no draft"),
        "unknown method": ((*good, "--method", "magic"), "magic"),
        "empty list of methods": ((*good, "--method", ","), "list of methods is empty"),
        "list without its draft": ((*good, "--method", "ngram,draft_model"), "--draft"),
        "tree in a list": ((*good, "--method", "ngram,dynamic_tree", "--draft", models["draft"]), "draft chains"),
        "unknown draft length": ((*good, "--method", "ngram", "--draft-length", "often"), "draft_length 'often'"),
        "confidence without a model": ((*good, "--method", "ngram", "--draft-length", "confidence"), "draft_length 'confidence'"),
        "no such statistics": ((*good, "--method", "ngram", "--ngram-statistics", tmp_path / "absent.npz"), "absent.npz"),
        "other statistics": ((*good, "--method", "ngram", "--ngram-statistics", lines), "no n-gram statistics"),
        "unknown rule": ((*good, "--rule", "magic"), "magic"),
        "empty prompt": ((*good[:-1], ""), "empty"),
        "prompt of no text encoding": ((*good[:-1], "\udcff"), "UTF-8"),
        "prompt longer than the context": ((*good[:-1], "x" * (TINY.context + 1)), "context"),
        "no speculative tokens": ((*good, "--num-speculative-tokens", "0"), "num_speculative_tokens"),
        "lookup range": ((*good, "--method", "ngram", "--prompt-lookup-min", "9"), "prompt_lookup_min"),
        "exit layer 0": ((*good, "--method", "early_exit", "--exit-layer", "0"), "exit_layer"),
        "exit from the only layer": ((*good, "--method", "early_exit"), "at least two layers"),
        "every sub-layer skipped": ((*good, "--method", "layer_skip"), "every sub-layer"),
        "no sub-layer skipped": ((*good, "--method", "layer_skip", "--skip-mlp", ""), "nothing out"),
        "skipped layer that is not there": ((*good, "--method", "layer_skip", "--skip-mlp", "0,4"), "skip_mlp names layer 4"),
        "layers that are no numbers": ((*good, "--method", "layer_skip", "--skip-attention", "a"), "--skip-attention"),
        "confidence above 1": ((*good, "--method", "early_exit", "--draft-confidence", "1.5"), "draft_confidence"),
        "nothing to tune": (("tune", "--model", models["target"]), "--layers"),
        "one layer to tune": (("tune", "--layers", "--model", models["target"]), "one layer"),
        "negative temperature": ((*good, "--temperature", "-1"), "temperature"),
        "temperature not a number": ((*good, "--temperature", "nan"), "temperature"),
        "top_p of 0": ((*good, "--top-p", "0"), "top_p"),
        "top_p above 1": ((*good, "--top-p", "1.5"), "top_p"),
        "negative top_k": ((*good, "--top-k", "-1"), "top_k"),
        "min_p above 1": ((*good, "--min-p", "2"), "min_p"),
        "negative seed": ((*good, "--seed", "-1"), "seed"),
        "no new tokens": ((*good, "--max-new-tokens", "0"), "max_new_tokens"),
        "too little capacity": ((*good, "--capacity", "4"), "capacity"),
        "seed above 32 bits": ((*good, "--seed", "4294967296"), "seed"),
        "repetition penalty of 0": ((*good, "--repetition-penalty", "0"), "repetition_penalty"),
        "too many logprobs": ((*good, "--logprobs", "21"), "logprobs"),
        "more least than most tokens": ((*good, "--min-new-tokens", "9", "--max-new-tokens", "8"), "min_new_tokens 9"),
        "token outside the vocabulary": ((*good, "--suppress-token", "61"), "suppressed_tokens"),
        "no token left": ((*good, "--allow-token", "3", "--suppress-token", "3"), "every token"),
        "bias is not JSON": ((*good, "--logit-bias", "{"), "--logit-bias"),
        "bias of a word": ((*good, "--logit-bias", '{"a": 1}'), "logit_bias"),
        "bias in no file": ((*good, "--logit-bias", f"@{tmp_path}/absent"), "absent"),
        "broken expression": ((*good, "--regex", "(["), "regex"),
        "expression without a match": ((*good, "--regex", "\u00e9"), "cannot match"),
        "two constraints": ((*good, "--regex", "a", "--choice", "b"), "regex and choices"),
        "choice shorter than the least": ((*good, "--choice", "A", "--min-new-tokens", "2"), "min_new_tokens 2 conflicts"),
        "unknown keyword of a schema": ((*good, "--json-schema", '{"type": "integer", "minimum": 1}'), "minimum"),
        "constraint past end tokens": ((*good, "--regex", "A", "--ignore-eos"), "ignore_eos"),
        "empty stop string": ((*good, "--stop", ""), "stop string"),
        "rule that needs a q": ((*good, "--method", "ngram", "--rule", "block"), "needs drafts sampled"),
        "unknown fault": ((*verify, "--inject", "magic"), "magic"),
        "fault without a draft": (("verify", "--model", models["target"], "--method", "ngram", "--inject", "ratio-epsilon"), "draft_model"),
        "fault that cannot show": ((*verify, "--inject", "q-before-top-p"), "top_p"),
        "nothing to sample": ((*verify, "--temperature", "0"), "temperature"),
        "no samples": ((*verify, "--samples", "0"), "--samples"),
        "stream of several": ((*good, "--prompt", "y", "--stream"), "--stream"),
        "bad prompts file": (("compare", "--model", models["target"], "--prompts", lines), "line 2"),
        "missing prompts file": (("compare", "--model", models["target"], "--prompts", tmp_path / "absent"), "absent"),
        "no methods": (("compare", "--model", models["target"], "--methods", ","), "--methods"),
        "no prompts": (("compare", "--model", models["target"], "--num-prompts", "0"), "num_prompts"),
        "output nowhere": (("compare", "--model", models["target"], "--output", tmp_path / "no" / "o.json"), "--output"),
    }


def directory(tmp_path, models, file: str, content: bytes | None) -> str:
    """A copy of the target in which one file is replaced or missing."""
    copy = tmp_path / f"model{len(list(tmp_path.iterdir()))}"
    copy.mkdir()
    for name in os.listdir(models["target"]):
        os.symlink(os.path.join(models["target"], name), copy / name)
    (copy / file).unlink()
    if content is not None:
        (copy / file).write_bytes(content)
    return str(copy)


def truncated(tmp_path, models) -> str:
    with open(os.path.join(models["target"], "model.safetensors"), "rb") as file:
        return directory(tmp_path, models, "model.safetensors", file.read()[:-100])


def changed_config(tmp_path, models, **changes) -> str:
    with open(os.path.join(models["target"], CONFIG), "rb") as file:
        return directory(tmp_path, models, CONFIG, json.dumps(json.load(file) | changes).encode())


def test_bad_input_gets_one_line_and_exit_code_2(specjax_main, models, tmp_path):
    for kind, (argv, words) in bad_cases(models, tmp_path).items():
        code, out, err = specjax_main(*argv)
        assert (code, out) == (2, ""), kind
        assert err.startswith("specjax: error: "), kind
        assert err.count("\n") == 1, (kind, err)
        assert words in err, (kind, err)
        assert "Traceback" not in err, kind


def test_nan_logits_stop_with_one_line(specjax_main, models):
    code, out, err = specjax_main("generate", "--model", models["nan"], "--prompt", "def f(", *GENERATE)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "NaN" in err


def test_the_context_ends_a_row_with_length(specjax_main, models):
    prompt = "x" * (TINY.context - 3)
    code, out, _ = specjax_main("generate", "--model", models["target"], "--prompt", prompt, *GENERATE, "--json")
    assert code == 0
    assert (len(json.loads(out)["token_ids"]), json.loads(out)["finish_reason"]) == (3, "length")


@pytest.mark.parametrize(("error", "code"), [(KeyboardInterrupt, 130), (BrokenPipeError, 141)])
def test_interruptions_are_quiet(specjax_main, models, monkeypatch, error, code):
    def interrupted(*args, **options):
        raise error

    monkeypatch.setattr(sys.modules["specjax.checkpoints.load"], "load", interrupted)
    assert specjax_main("generate", "--model", models["target"], "--prompt", "x") == (code, "", "")


def test_version_and_help(specjax_main):
    assert specjax_main("--version") == (0, f"specjax {specjax.__version__}\n", "")
    code, out, _ = specjax_main("compare", "--help")
    assert code == 0
    assert "--num-speculative-tokens" in out


def test_as_a_process_without_a_terminal():
    done = subprocess.run(
        [sys.executable, "-m", "specjax", "generate", "--model", "no-such-model", "--prompt", "x"], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("specjax: error: no model 'no-such-model'")
    assert done.stderr.count("\n") == 1
