"""Fixtures of the tests of commands: tiny models on disk, the command in this process, and compiled programs that tests share."""

import sys

import pytest

import specjax
from specjax import LanguageModel
from specjax.cli.main import main
from support.models import byte_tokenizer, disturbed, language_model, tiny_model

OPTIONS = ("--max-new-tokens", "10")
SHORT = ("--num-speculative-tokens", "3")
GENERATE = (*OPTIONS, "--capacity", "300", "--ignore-eos")
PLAIN = (*GENERATE, "--method", "none")  # compiles in a fifth of the time of the default, auto


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """Directories of models of one layer, which compile fast: a pair, a draft without any of their letters, and one that gives NaN."""
    root = tmp_path_factory.mktemp("models")
    small = tiny_model(num_layers=1)
    saved = {
        "target": language_model(small),
        "draft": language_model(disturbed(small, 0.3)),
        "foreign": LanguageModel(small, small.config, byte_tokenizer(first=100), "foreign"),
        "nan": language_model(tiny_model(num_layers=1, sharpness=float("nan"))),
    }
    chat = byte_tokenizer()
    chat.chat_template = "{% for message in messages %}[{{ message['content'] }}]{% endfor %}"
    saved["chat"] = LanguageModel(small, small.config, chat, "chat")
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


@pytest.fixture(scope="session")
def kept():
    """Models and generators by their arguments, so that the tests compile each only once."""
    return {}


@pytest.fixture
def reuse(monkeypatch, kept):
    """Gives commands the models and generators of ``kept``."""
    real_load, real_generator = specjax.checkpoints.load.load, specjax.Generator

    def load(name, **options):
        key = ("load", str(name), *options.items())
        if key not in kept:
            kept[key] = real_load(name, **options)
        return kept[key]

    def generator(target, method=None, draft=None, **options):
        key = (id(target), method, str(draft), *options.items())
        if key not in kept:
            kept[key] = real_generator(target, method, draft, **options)
        kept["latest"] = kept[key]
        return kept[key]

    monkeypatch.setattr(sys.modules["specjax.checkpoints.load"], "load", load)
    for name in ("generate", "generator"):
        monkeypatch.setattr(sys.modules[f"specjax.text.{name}"], "Generator", generator)


def assert_one_line(found: tuple, words: str, code: int = 2) -> None:
    """The command printed nothing but one line on stderr that says ``words``."""
    assert found[:2] == (code, ""), found
    assert found[2].startswith("specjax: error: ") and found[2].count("\n") == 1, found
    assert words in found[2], found
