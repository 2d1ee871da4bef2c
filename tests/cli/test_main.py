"""Exit codes and one-line messages that all commands share."""

import errno
import json
import os
import re
import shutil
import subprocess
import sys
from importlib import import_module

import pytest
from support.command_line import GENERATE, assert_one_line, kept, models, reuse, specjax_main
from support.models import TINY

import specjax
from specjax.cli.main import COMMANDS, make_parser

CONFIG = "config.json"


def bad_cases(models, tmp_path) -> dict:
    """Arguments, and words of the one line that they get."""
    good = ("generate", "--model", models["target"], "--prompt", "x")
    draft = (*good, "--method", "draft_model", "--draft")
    verify = ("verify", "--model", models["target"], "--draft", models["draft"])
    lines = tmp_path / "prompts.jsonl"
    lines.write_text('{"prompt": "a"}\nnot json\n')
    deep = tmp_path / "deep.jsonl"
    deep.write_text('{"prompt":' * 200_000)
    return {
        "unknown command": (("genrate",), "command 'genrate' is unknown; did you mean generate?"),
        "unknown option before a command": (("--versoin",), "option --versoin is unknown; did you mean --version?"),
        "unknown option": ((*good, "--nonsense"), "option --nonsense is unknown"),
        "mistyped option before its own": (
            ("generate", "--promt", "x"),
            "option --promt is unknown; did you mean --prompt?",
        ),
        "mistyped option with a value": ((*good, "--max-new-tokn=3"), "did you mean --max-new-tokens?"),
        "not a number": ((*good, "--max-new-tokens", "many"), "--max-new-tokens"),
        "no prompt": (("generate", "--model", models["target"]), "--prompt"),
        "unknown model": (("generate", "--model", "no-such-model", "--prompt", "x"), "no-such-model"),
        "no config.json": (("generate", "--model", directory(tmp_path, models, CONFIG, None), "--prompt", "x"), CONFIG),
        "corrupt weights": (
            ("generate", "--model", directory(tmp_path, models, "model.safetensors", b"junk"), "--prompt", "x"),
            "corrupt",
        ),
        "truncated weights": (("generate", "--model", truncated(tmp_path, models), "--prompt", "x"), "truncated"),
        "unsupported family": (
            ("generate", "--model", directory(tmp_path, models, CONFIG, b'{"model_type": "mamba"}'), "--prompt", "x"),
            "mamba",
        ),
        "unsupported option": (
            ("generate", "--model", changed_config(tmp_path, models, hidden_act="relu"), "--prompt", "x"),
            "hidden_act",
        ),
        "config is not JSON": (
            ("generate", "--model", directory(tmp_path, models, CONFIG, b"{"), "--prompt", "x"),
            CONFIG,
        ),
        "draft of another alphabet": ((*draft, models["foreign"]), "share 0 of 59 tokens"),
        "merged of one draft": ((*good, "--method", "merged", "--draft", models["draft"]), "needs 2 drafts"),
        "no such adapter": ((*good, "--adapter", tmp_path / "absent"), "absent"),
        "an adapter without its files": ((*good, "--adapter", tmp_path), "adapter_model.safetensors"),
        "an adapter of two drafts": (
            (*draft, models["draft"], "--draft", models["draft"], "--draft-adapter", tmp_path),
            "--draft-adapter changes one draft and 2 are given",
        ),
        "draft vocabulary without a draft": ((*good, "--draft-vocab", "9"), "--draft-vocab restricts a draft model"),
        "draft vocabulary larger than the target's": ((*draft, models["draft"], "--draft-vocab", "99"), "draft_vocab"),
        "data without a draft vocabulary": ((*good, "--draft-vocab-data", lines), "give --draft-vocab N too"),
        "unknown form of weights": ((*good, "--quantize", "int3"), "--quantize"),
        "unknown form of the cache": ((*good, "--kv-quantize", "int4"), "--kv-quantize"),
        "form of no draft": ((*good, "--draft-quantize", "int8"), "--draft-quantize quantises a draft model"),
        "unknown draft": ((*draft, "no-such-draft"), "no-such-draft"),
        "draft_model without a draft": ((*good, "--method", "draft_model"), "--draft"),
        "ngram with a draft": ((*good, "--method", "ngram", "--draft", models["draft"]), "takes no draft"),
        "unknown method": ((*good, "--method", "magic"), "magic"),
        "empty list of methods": ((*good, "--method", ","), "list of methods is empty"),
        "list without its draft": ((*good, "--method", "ngram,draft_model"), "--draft"),
        "tree in a list": ((*good, "--method", "ngram,dynamic_tree", "--draft", models["draft"]), "draft chains"),
        "unknown draft length": ((*good, "--method", "ngram", "--draft-length", "often"), "draft_length 'often'"),
        "confidence without a model": (
            (*good, "--method", "ngram", "--draft-length", "confidence"),
            "draft_length 'confidence'",
        ),
        "no such statistics": (
            (*good, "--method", "ngram", "--ngram-statistics", tmp_path / "absent.npz"),
            "absent.npz",
        ),
        "other statistics": ((*good, "--method", "ngram", "--ngram-statistics", lines), "no n-gram statistics"),
        "unknown rule": ((*good, "--rule", "magic"), "magic"),
        "empty prompt": ((*good[:-1], ""), "empty"),
        "empty model": (("generate", "--model", "", "--prompt", "x"), "--model: is empty"),
        "empty draft": ((*good, "--draft", ""), "--draft: is empty"),
        "empty data": (("ngrams", "--data", "", "--output", "x.npz"), "--data: is empty"),
        "empty output": (("compare", "--output", ""), "--output: is empty"),
        "prompt of no text encoding": ((*good[:-1], "\udcff"), "UTF-8"),
        "prompt longer than the context": ((*good[:-1], "x" * (TINY.context + 1)), "context"),
        "no speculative tokens": (
            (*good, "--method", "ngram", "--num-speculative-tokens", "0"),
            "num_speculative_tokens",
        ),
        "option of another method": (
            (*good, "--method", "ngram", "--tree-nodes", "9"),
            "it takes num_speculative_tokens",
        ),
        "option without a method": ((*good, "--num-speculative-tokens", "3"), "it takes none"),
        "option of another method in verify": (
            (*verify, "--method", "none", "--window", "9"),
            "'window' belongs to another method",
        ),
        "lookup range": ((*good, "--method", "ngram", "--prompt-lookup-min", "9"), "prompt_lookup_min"),
        "exit layer 0": ((*good, "--method", "early_exit", "--exit-layer", "0"), "exit_layer"),
        "exit from the only layer": ((*good, "--method", "early_exit"), "at least two layers"),
        "every sub-layer skipped": ((*good, "--method", "layer_skip"), "every sub-layer"),
        "no sub-layer skipped": ((*good, "--method", "layer_skip", "--skip-mlp", ""), "nothing out"),
        "skipped layer that is not there": (
            (*good, "--method", "layer_skip", "--skip-mlp", "0,4"),
            "skip_mlp names layer 4",
        ),
        "layers that are no numbers": ((*good, "--method", "layer_skip", "--skip-attention", "a"), "--skip-attention"),
        "confidence above 1": ((*good, "--method", "early_exit", "--draft-confidence", "1.5"), "draft_confidence"),
        "nothing to tune": (("tune", "--model", models["target"]), "--layers"),
        "one layer to tune": (("tune", "--layers", "--model", models["target"]), "one layer"),
        "negative temperature": ((*good, "--temperature", "-1"), "temperature"),
        "temperature not a number": ((*good, "--temperature", "nan"), "temperature"),
        "top_p of 0": ((*good, "--top-p", "0"), "top_p"),
        "top_p above 1": ((*good, "--top-p", "1.5"), "top_p"),
        "negative top_k": ((*good, "--top-k", "-2"), "top_k"),
        "min_p above 1": ((*good, "--min-p", "2"), "min_p"),
        "negative seed": ((*good, "--seed", "-1"), "--seed: must be a whole number from 0 to 4294967295, not '-1'"),
        "negative seed of a training": (("train", "--recipe", "medusa", "--seed", "-1"), "from 0 to 4294967295"),
        "no new tokens": (
            (*good, "--max-new-tokens", "0"),
            "--max-new-tokens: must be a whole number from 1 to 2147483647",
        ),
        "huge number": ((*good, "--max-new-tokens", "9" * 5000), "from 1 to 2147483647"),
        "too little capacity": ((*good, "--capacity", "4"), "capacity"),
        "seed above 32 bits": ((*good, "--seed", "4294967296"), "seed"),
        "repetition penalty of 0": ((*good, "--repetition-penalty", "0"), "repetition_penalty"),
        "too many logprobs": ((*good, "--logprobs", "21"), "logprobs"),
        "more least than most tokens": ((*good, "--min-new-tokens", "9", "--max-new-tokens", "8"), "min_new_tokens 9"),
        "token outside the vocabulary": ((*good, "--suppress-token", "61"), "suppressed_tokens"),
        "no token left": ((*good, "--allow-token", "3", "--suppress-token", "3"), "every token"),
        "bias is not JSON": ((*good, "--logit-bias", "{"), "--logit-bias"),
        "bias that nests deeply": ((*good, "--logit-bias", "[" * 200_000), "nests too deeply"),
        "schema that nests deeply": ((*good, "--json-schema", '{"a":' * 200_000), "nests too deeply"),
        "bias of a word": ((*good, "--logit-bias", '{"a": 1}'), "logit_bias"),
        "bias in no file": ((*good, "--logit-bias", f"@{tmp_path}/absent"), "absent"),
        "broken expression": ((*good, "--regex", "(["), "regex"),
        "expression without a match": ((*good, "--regex", "\u00e9"), "cannot match"),
        "two constraints": ((*good, "--regex", "a", "--choice", "b"), "regex and choices"),
        "choice shorter than the least": (
            (*good, "--choice", "A", "--min-new-tokens", "2"),
            "min_new_tokens 2 conflicts",
        ),
        "unknown keyword of a schema": ((*good, "--json-schema", '{"not": {"type": "integer"}}'), "not"),
        "constraint past end tokens": ((*good, "--regex", "A", "--ignore-eos"), "ignore_eos"),
        "empty stop string": ((*good, "--stop", ""), "stop string"),
        "rule that needs a q": ((*good, "--method", "ngram", "--rule", "block"), "needs drafts sampled"),
        "unknown fault": ((*verify, "--inject", "magic"), "magic"),
        "fault without a draft": (
            ("verify", "--model", models["target"], "--method", "ngram", "--inject", "ratio-epsilon"),
            "draft_model",
        ),
        "fault that cannot show": ((*verify, "--inject", "q-before-top-p"), "top_p"),
        "nothing to sample": ((*verify, "--temperature", "0"), "temperature"),
        "no samples": ((*verify, "--samples", "0"), "--samples"),
        "stream of several": ((*good, "--prompt", "y", "--stream"), "--stream"),
        "bad prompts file": (("compare", "--model", models["target"], "--prompts", lines), "line 2"),
        "prompts file that nests deeply": (
            ("compare", "--model", models["target"], "--prompts", deep),
            "line 1: the line nests too deeply",
        ),
        "missing prompts file": (("compare", "--model", models["target"], "--prompts", tmp_path / "absent"), "absent"),
        "no methods": (("compare", "--model", models["target"], "--methods", ","), "--methods"),
        "no prompts": (
            ("compare", "--model", models["target"], "--num-prompts", "0"),
            "--num-prompts: must be a whole number from 1 to 100000",
        ),
        "output nowhere": (
            ("compare", "--model", models["target"], "--output", tmp_path / "no" / "o.json"),
            "--output",
        ),
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


def test_bad_input_gets_one_line_and_exit_code_2(specjax_main, models, tmp_path, reuse):
    for kind, (argv, words) in bad_cases(models, tmp_path).items():
        try:
            assert_one_line(specjax_main(*argv), words)
        except (AssertionError, RecursionError) as error:
            raise AssertionError(f"{kind}: {error}") from error


def raising(error):
    def load(*args, **options):
        raise error

    return load


FULL = OSError(errno.ENOSPC, "No space left on device", "checkpoints/7")
ERRORS = {
    "Ctrl-C": (KeyboardInterrupt(), 130, "specjax: interrupted\n"),
    "closed pipe": (BrokenPipeError(), 141, ""),
    "disk full": (FULL, 1, "specjax: error: checkpoints/7 cannot be written (No space left on device); make room, or write to another place\n"),
    "disk full in a group of threads": (
        ExceptionGroup("saving", [ValueError("metadata"), RuntimeError("RESOURCE_EXHAUSTED: write: No space left on device")]),
        1,
        "specjax: error: output cannot be written (No space left on device); make room, or write to another place\n",
    ),
    "no memory": (MemoryError(), 1, "specjax: error: the memory does not suffice; use a smaller model, capacity, batch or tree\n"),
    "unusable file": (PermissionError(errno.EACCES, "Permission denied", "log"), 1, "specjax: error: log cannot be used (Permission denied); name another file\n"),
}  # fmt: skip


@pytest.mark.parametrize("kind", ERRORS)
def test_errors_of_the_machine_get_one_line(specjax_main, monkeypatch, kind):
    error, code, message = ERRORS[kind]
    monkeypatch.setattr(sys.modules["specjax.checkpoints.load"], "load", raising(error))
    monkeypatch.setattr(sys.modules["specjax.cli.main"], "_discard_output", lambda: None)  # pytest needs its stdout
    assert specjax_main("generate", "--prompt", "x") == (code, "", message)


def test_an_error_of_the_program_keeps_its_traceback(specjax_main, monkeypatch):
    monkeypatch.setattr(sys.modules["specjax.checkpoints.load"], "load", raising(ZeroDivisionError("a bug")))
    with pytest.raises(ZeroDivisionError):
        specjax_main("generate", "--prompt", "x")


def test_a_closed_stdin_is_named(specjax_main, monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    assert_one_line(specjax_main("generate", "--prompt", "-"), "--prompt -: standard input is closed")


def test_version_and_help(specjax_main):
    assert specjax_main("--version") == (0, f"specjax {specjax.__version__}\n", "")
    code, overview, err = specjax_main()
    assert (code, err) == (0, "") and overview == specjax_main("--help")[1]
    for command in COMMANDS:
        code, out, err = specjax_main(command, "--help")
        assert (code, err) == (0, "") and out.startswith("usage: specjax " + command)
        assert f"\n    {command}" in overview


def test_help_begins_with_at_most_ten_common_options(specjax_main):
    for command in COMMANDS:
        titles = re.findall(r"^(\w.*):$", specjax_main(command, "--help")[1], re.M)
        assert titles[0] == "common options"
        assert len(import_module(f"specjax.cli.{command}").COMMON) <= 10


def test_an_overview_imports_no_command(capsys, monkeypatch):
    """The modules of commands are slow to import, so only the command that runs is imported."""
    modules = {f"specjax.cli.{command}" for command in COMMANDS}
    for name in modules | {"specjax.cli.main"}:  # as in a new process
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(specjax.cli, "main", None)  # the import below replaces it
    with pytest.raises(SystemExit) as end:
        import_module("specjax.cli.main").main([])
    assert not end.value.code and "commands" in capsys.readouterr().out
    assert not modules & {*sys.modules}


def test_flags_have_the_names_of_other_libraries_too():
    parser = make_parser(("generate", "serve"))
    assert parser.parse_args(["generate", "--max-tokens", "8"]).max_new_tokens == 8
    assert parser.parse_args(["generate", "--max-tokens=8"]).max_new_tokens == 8
    args = parser.parse_args("serve --max-model-len 9 --max-num-seqs 3 --served-model-name x".split())
    assert (args.capacity, args.slots, args.name) == (9, 3, "x")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_completes_commands_and_flags(specjax_main, shell):
    code, out, err = specjax_main("completion", shell)
    assert (code, err) == (0, "")
    assert all(command in out for command in COMMANDS) and "max-new-tokens" in out
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=out, text=True, check=True)


def start(*argv, **options) -> subprocess.Popen:
    """The command as a process of its own."""
    pipes = dict(stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE) | options
    return subprocess.Popen([sys.executable, "-m", "specjax", *argv], text=True, **pipes)


def test_a_process_ends_with_its_reader():
    reading, writing = os.pipe()
    os.close(reading)
    closed = start("--version", stdout=writing)
    os.close(writing)
    assert (closed.communicate()[1], closed.returncode) == ("", 141)


@pytest.mark.slow
def test_as_processes_without_a_terminal():
    """The processes run side by side, because each imports jax: a bad name, a full device, closed streams."""
    with open("/dev/full", "w") as full:
        wrong = start("generate", "--model", "no-such-model", "--prompt", "x")
        filled = start("--version", stdout=full)
        streamless = subprocess.Popen(
            ["sh", "-c", f"{sys.executable} -m specjax --version >&- <&-"], stderr=subprocess.PIPE, text=True
        )
    out, err = wrong.communicate()
    assert (wrong.returncode, out) == (2, "") and err.count("\n") == 1
    assert err.startswith("specjax: error: no model 'no-such-model'")
    err = filled.communicate()[1]
    assert (filled.returncode, err.count("\n")) == (1, 1) and "No space left on device" in err
    assert (streamless.communicate()[1], streamless.returncode) == ("", 0)


def test_a_revision_is_for_hub_ids(specjax_main, models):
    found = specjax_main("generate", "--model", models["target"], "--revision", "main", "--prompt", "x")
    assert_one_line(found, "only hub ids have revisions")
