"""Every flag with values that are long, odd or endless: one short line before a model is loaded."""

import functools
import itertools
import os

import pytest
from support.command_line import specjax_main

import specjax.checkpoints.hub
import specjax.checkpoints.load
import specjax.tools.plan.settings
from specjax.cli.main import COMMANDS, make_parser
from specjax.errors import CheckpointError

NEEDED = {
    "generate": ["--prompt=a"],
    "beams": ["--prompt=a"],
    "evaluate": ["--suite=small", "--methods=ngram", "--output={new}"],
    "doctor": ["--method=ngram"],
    "verify": ["--method=ngram"],
    "tune": ["--tree"],
    "train": ["--recipe=medusa"],
    "ngrams": ["--data={text}", "--output={new}"],
    "grow": ["--like=tiny-python", "--output={new}"],
    "plan": ["--model=tiny-python", "--device=v5e:1"],
    "prune": ["--output={new}", "--layers=1"],
}
VALUES = {
    "long": "x" * 300_000,
    "bytes that are no text": "\udcff\udcfe",
    "deep": "[" * 5000,
    "a device without an end": "/dev/zero",
    "a file that is a device without an end": "@/dev/zero",
    "a number of many digits": "9" * 5000,
    "empty": "",
    "a link to itself": "{loop}",
    "a directory": "{directory}",
    "a file of bytes": "{bytes}",
    "a deep file": "{deep}",
    "a file named after an @": "@{deep}",
    "a zero byte": "a\0b",
    "an unknown home": "~nobody-here/x",
}
HOSTS = ("coordinator", "num_processes", "process_id")


class Loaded(BaseException):
    """A model would be loaded."""


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Files for the values. The work of commands is replaced by ``Loaded``."""

    def stop(*args, **options):
        raise Loaded

    def download(name, revision):
        raise CheckpointError(f"no model {name!r}: no network here")

    for module, name in ((specjax.checkpoints.load, "load"), (specjax.checkpoints.load, "load_tokenizer")):
        monkeypatch.setattr(module, name, stop)
    monkeypatch.setattr(specjax.tools.plan.settings, "plan", stop)
    monkeypatch.setattr(specjax.checkpoints.hub, "_download", download)
    monkeypatch.setattr("specjax.serve.server.bind", stop)
    monkeypatch.chdir(tmp_path)
    os.symlink(tmp_path / "loop", tmp_path / "loop")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\0" * 9)
    (tmp_path / "deep").write_text("a = " + "[" * 5000)
    (tmp_path / "text").write_text("some text")
    names = dict(loop="loop", directory=".", bytes="bytes", deep="deep", text="text", new="new")
    return {key: str(tmp_path / name) for key, name in names.items()}


@functools.cache
def flags(command: str) -> dict[str, str]:
    """The flags of a command that take a value, and the help of each."""
    parser = make_parser([command])._subparsers._group_actions[0].choices[command]
    actions = [action for action in parser._actions if action.option_strings and action.nargs != 0]
    return {action.option_strings[-1]: action.help for action in actions if action.dest not in HOSTS}


def flags_of_others(command: str) -> set[tuple[str, str]]:
    """The flags, with their help, that commands before this one have too."""
    before = itertools.takewhile(lambda other: other != command, COMMANDS)
    return set().union(*(flags(other).items() for other in before))


# A flag that an earlier command has too gets one value in the first tier, and the rest in the second.
@pytest.mark.parametrize("rest", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_bad_value_gets_one_short_line(command, rest, files, specjax_main):
    others = flags_of_others(command)
    for place, (flag, meaning) in enumerate(flags(command).items()):
        needed = [word.format(**files) for word in NEEDED.get(command, ()) if not word.startswith(f"{flag}=")]
        values = [*VALUES.items()][place % 3 :: 3]  # a third for each flag; each command gets all
        few = [values[place // 3 % len(values)]] if (flag, meaning) in others else values
        for name, value in [pair for pair in values if (pair in few) != rest]:
            value = value.format(**files) if "{" in value else value
            try:
                code, _, error = specjax_main(command, *needed, f"{flag}={value}")
            except Loaded:
                continue  # the command takes this value
            assert code == 2 and error.startswith("specjax: error:"), (flag, name, error)
            assert error.count("\n") == 1 and len(error) < 500, (flag, name, error)


@pytest.mark.parametrize(
    "argv",
    [
        ("generate", "--prompt", "a", "--costs", "absent"),
        ("explain", "--costs", "absent"),
        ("generate", "--prompt", "a", "--method", "ngram", "--ngram-statistics", "absent"),
        ("serve", "--method", "tree", "--draft", "x", "--tree", "absent"),
        ("train", "--recipe", "feedback", "--draft", "x", "--log", "absent"),
        ("train", "--recipe", "medusa", "--data", "absent"),
        ("prune", "--output", "new", "--data", "absent"),
        ("compare", "--prompts", "absent"),
        ("compare", "--output", "absent/report.json"),
        ("generate", "--prompt", "a", "--feedback-log", "text/log"),
        ("generate", "--prompt", "a", "--chat", "--chat-template", "absent"),
        ("verify", "--inject", ""),
        ("verify", "--inject", "no-such-fault"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_before_a_model_is_loaded(argv, files, specjax_main):
    code, _, error = specjax_main(*argv)
    assert code == 2 and argv[-2] in error or "absent" in error, error
    assert error.startswith("specjax: error:") and error.count("\n") == 1
