"""One run over a few questions, whose generators all tests of the folder share."""

from pathlib import Path

import pytest
from support.models import disturbed, language_model, tiny_model

from specjax.tools.evaluate.benchmark import run as runner
from specjax.tools.evaluate.benchmark.run import run_suite
from specjax.tools.evaluate.comparison import make_generators
from specjax.tools.evaluate.suites import Question, find_suite

QUESTIONS = [
    Question(1, "writing", "mt_bench", ("ABC", "DEF")),
    Question(2, "qa", "qa", ("GHIJ",)),
    Question(3, "coding", "mt_bench", ("KLM+1", "NOP")),
    Question(4, "qa", "qa", ("QR-5",)),
    Question(5, "rag", "rag", ("STUV 01",)),
]
"""Questions in letters that the byte tokenizer knows."""

METHODS = ["none", "draft_model"]
MAX_NEW_TOKENS = 12


@pytest.fixture(scope="session")
def model():
    """A target of one layer, which compiles fast."""
    return language_model(tiny_model(num_layers=1), "target")


@pytest.fixture(scope="session")
def made(model):
    """The generators of all runs."""
    draft = language_model(disturbed(model.model, 0.3), "draft")
    return make_generators(model, METHODS, draft, dict(num_speculative_tokens=3))


@pytest.fixture
def answer(model, made, monkeypatch):
    """Runs the suite in a directory, with the questions and options that a test gives."""
    monkeypatch.setattr(runner, "make_generators", lambda *args: made)

    def run(directory: Path, questions=QUESTIONS, **options):
        options = {"max_new_tokens": MAX_NEW_TOKENS, **options}
        return run_suite(model, find_suite("spec-bench"), questions, METHODS, directory, **options)

    return run


@pytest.fixture(scope="session")
def finished(model, made, tmp_path_factory):
    """A whole run, and its directory."""
    directory = tmp_path_factory.mktemp("run") / "output"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "make_generators", lambda *args: made)
        suite = find_suite("spec-bench")
        return run_suite(model, suite, QUESTIONS, METHODS, directory, max_new_tokens=MAX_NEW_TOKENS), directory
