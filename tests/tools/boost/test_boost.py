"""A whole boost of the embedded target, interrupted and resumed; and the counters of acceptance, by teacher forcing."""

import json
import subprocess
import sys

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from specjax import Generator, RequestError, load, load_boosted
from specjax.cli.main import main
from specjax.core.stats import total
from specjax.tools.boost import BoostOptions, boost
from specjax.training.data import standard_library
from specjax.training.recipe import make_recipe
from specjax.training.run import train

RUNGS = (1 / 3, 1.0)
OPTIONS = dict(tokens=8_500, questions=2, new_tokens=16, drafter="eagle3")


@pytest.fixture(scope="module")
def short_trainings():
    """Small batches, so that few steps fill a training, and few measurements."""
    with pytest.MonkeyPatch.context() as patch, jax.numpy_dtype_promotion("standard"):  # optax mixes types
        patch.setattr("specjax.tools.boost.candidates._TRAINING", {"batch": 2, "length": 64, "prompts": 0})
        patch.setattr("specjax.tools.boost.contest._EVERY", 20)
        patch.setattr("specjax.tools.boost.budget.PASSES", 1)
        patch.setattr("specjax.tools.boost.contest._RUNGS", RUNGS)
        patch.setattr("specjax.tools.boost.steps._TRIED", 3)
        patch.setattr("specjax.tools.boost.steps._TRIED_TOKENS", 24)
        patch.setattr("specjax.tools.boost.proof.TEMPERATURES", (0.0, 1.0))
        patch.setattr("specjax.tools.boost.proof.BATCHES", (1,))
        patch.setattr("specjax.tools.boost.proof._SAMPLES", 64)
        yield


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    directory = tmp_path_factory.mktemp("data")
    for path in standard_library()[:20]:
        (directory / f"{path.parent.name}_{path.name}").write_text(path.read_text())
    return directory


class Stop(Exception):
    pass


@pytest.fixture(scope="module")
def boosted(short_trainings, data, tmp_path_factory):
    """The directory of a boost that was stopped within each step."""
    output = tmp_path_factory.mktemp("boost") / "out"
    target = load("tiny-python", dtype="float32")
    lines = []
    for last in ("round in plain", "texts:", "M tokens of training", "the choice", ""):

        def say(line: str, last: str = last) -> None:
            lines.append(line)
            if last and last in line:
                raise Stop

        options = BoostOptions(data=(str(data),), **OPTIONS)
        if last:
            with pytest.raises(Stop):
                boost(target, "tiny-python", output, options, say=say)
        else:
            boost(target, "tiny-python", output, options, say=say)
    return target, output, lines


@pytest.mark.slow
def test_a_stopped_boost_ends_as_a_whole_one(boosted, data, tmp_path):
    target, output, _ = boosted
    steps = json.loads((output / "journal.json").read_text())["results"]["steps"]["eagle3"]
    texts = [str(output / "texts" / "training.jsonl")]
    recorded = json.loads((output / "candidates" / "eagle3" / "training" / "recipe.json").read_text())
    keys = ("kind", "head", "loss", "batch", "length", "seed", "every", "features")
    for share in RUNGS:
        recipe = make_recipe({key: recorded[key] for key in keys} | {"steps": int(steps * share)}, "test")
        train(recipe, target, texts, tmp_path / "training", measure=lambda module: None)
    whole = load_file(tmp_path / "training" / "model.safetensors")
    for part in ("candidates/eagle3/training", "drafter"):
        if (output / part).exists():
            stopped = load_file(output / part / "model.safetensors")
            assert stopped.keys() == whole.keys()
            assert all(np.array_equal(stopped[name], whole[name]) for name in whole)


@pytest.mark.slow
def test_the_result_decodes_and_its_pages_have_the_figures(boosted):
    target, output, lines = boosted
    journal = json.loads((output / "journal.json").read_text())["results"]
    generator = load_boosted(output, dtype="float32")
    prompt = "import os\n\ndef join(parts):\n"
    plain = Generator(target, "none")(prompt, max_new_tokens=24)
    assert generator(prompt, max_new_tokens=24).token_ids == plain.token_ids
    page = (output / "report.html").read_text()
    assert "specjax serve --boost" in page or "Plain decoding stays" in page
    for ratio in journal["survey"]["ratios"]:
        assert f"{ratio:.2f}" in page
    if journal["tuning"][0]["speedup"] > 1:
        assert generator.method == journal["tuning"][0]["method"]
        assert all(report["tasks"] for report in journal["proof"]["held-out"].values())
    assert "eagle3" in (output / "report.html").read_text()
    assert any("steps of training" in line for line in lines)


@pytest.mark.slow
def test_the_command_line_generates_with_a_boost(boosted, capsys):
    _, output, _ = boosted
    assert main(["generate", "--boost", str(output), "--prompt", "def f(", "--max-new-tokens", "4", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["text"]


@pytest.mark.slow
def test_accepted_drafts_by_teacher_forcing():
    """The counters of greedy rounds are those of drafts that the draft model writes after each round's text."""
    target, draft = (load(name, dtype="float32") for name in ("tiny-python", "tiny-python-draft"))
    prompts = [f"class Shape{i}:\n    def __init__(self, width, height):\n" for i in range(4)]
    K = 3
    generator = Generator(target, "draft_model", draft, num_speculative_tokens=K)
    results = [generator(prompt, max_new_tokens=24, ignore_eos=True) for prompt in prompts]
    alone = Generator(draft, "none")
    accepted = rounds = 0
    for result in results:
        ids = [*result.prompt_token_ids, *result.token_ids]
        starts = range(len(result.prompt_token_ids), len(ids))
        drafts = alone([ids[:start] for start in starts], max_new_tokens=K, ignore_eos=True)
        agree = [_common(each.token_ids, ids[start:]) for start, each in zip(starts, drafts)]
        place = 0
        while place < len(agree):
            left = len(agree) - place
            accepted += min(agree[place], left)
            rounds += 1
            place += agree[place] + 1
    stats = total([result.stats for result in results])
    assert stats.target_calls == rounds
    assert stats.accepted == accepted


def _common(a: list[int], b: list[int]) -> int:
    """The number of equal tokens at the beginning."""
    return next((i for i, pair in enumerate(zip(a, b)) if pair[0] != pair[1]), min(len(a), len(b)))


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--hours", "0"], "hours must be above 0"),
        (["--suite", "nosuch"], "nosuch"),
        (["--limit", "3"], "belong to --suite"),
        (["--data", "/nonexistent.jsonl"], "no such file"),
        (["--tokens", "100", "--drafter", "eagle3"], "100 tokens are too few to train eagle3"),
    ],
)
def test_bad_input_is_one_line(arguments, message, tmp_path, capsys):
    assert main(["boost", "--model", "tiny-python", "--output", str(tmp_path / "out"), *arguments]) == 2
    error = capsys.readouterr().err.strip().splitlines()
    assert len(error) == 1 and message in error[0]


def test_a_plan_ends_with_the_survey(tmp_path, capsys, monkeypatch):
    """It writes no texts, and the same directory may go on."""
    survey = dict(nodes=[1, 2, 8], ratios=[1.0, 1.1, 2.0], promising=["ngram"], reasons={"ngram": "may give 1.2 times"})
    monkeypatch.setattr("specjax.tools.boost.steps.survey", lambda target, names: survey)
    output = tmp_path / "out"
    assert main(["boost", "--model", "tiny-python", "--output", str(output), "--device", "plan"]) == 0
    assert "ngram: may give 1.2 times" in capsys.readouterr().err
    journal = json.loads((output / "journal.json").read_text())
    assert list(journal["results"]) == ["survey"] and "device" not in journal["settings"]
    assert not (output / "boost.toml").exists() and not (output / "texts").exists()


def test_an_unknown_kind_is_refused():
    with pytest.raises(RequestError, match="did you mean eagle3"):
        BoostOptions(drafter="eagel3")


def test_a_foreign_directory_is_refused_before_the_model_is_loaded(tmp_path, capsys):
    (tmp_path / "notes.txt").write_text("mine")
    assert main(["boost", "--model", "nosuch-model", "--output", str(tmp_path)]) == 2
    assert "holds no boost" in capsys.readouterr().err
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_boost_beside_a_draft_is_refused(capsys):
    assert main(["generate", "--boost", "x", "--draft", "y", "--prompt", "a"]) == 2
    assert "--boost chooses the draft" in capsys.readouterr().err


@pytest.mark.slow
def test_importing_the_command_loads_no_trainer():
    code = "import sys, specjax.cli.boost; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"
