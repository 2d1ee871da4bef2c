"""``specjax prune``: a checkpoint that loads and drafts, its healing, and what bad input gets."""

import jax
import pytest
from support.command_line import assert_one_line, specjax_main
from support.models import language_model, tiny_model

import specjax

SMALL = "--layers", "1", "--width", "96", "--intermediate", "128", "--heads", "3"


@pytest.fixture
def prune(specjax_main, tmp_path):
    text = tmp_path / "text.py"
    text.write_text("def area(width, height):\n    return width * height\n" * 400)
    return lambda *argv: specjax_main("prune", "--data", text, "--output", tmp_path / "draft", *argv)


def test_a_pruned_draft_is_an_ordinary_checkpoint(prune, tmp_path):
    specjax.save(language_model(tiny_model()), tmp_path / "model")
    sizes = "--layers", "1", "--width", "24", "--intermediate", "40", "--heads", "2"
    code, out, _ = prune("--model", tmp_path / "model", *sizes, "--steps", "0")
    assert code == 0 and "1 layers of width 24" in out
    draft = specjax.load(tmp_path / "draft")
    config = draft.config
    assert (config.num_layers, config.hidden_size, config.intermediate_size) == (1, 24, 40)
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (2, 2, 8)
    assert_one_line(prune("--layers", "1"), "exists and is not empty; name a new directory")


def test_bad_input_gets_one_line(prune, specjax_main, tmp_path):
    for argv, words in (
        (["--layers", "9"], "layers is 9 and the model has 8; give 1 to 8"),
        (["--width", "512"], "width is 512 and the model has 384"),
        (["--heads", "5"], "5 heads cannot be taken evenly"),
        (["--width", "100"], "no multiple of heads 6"),
        (["--layers", "0"], "must be a whole number from 1"),
        (["--importance", "weights"], "invalid choice: 'weights'"),
    ):
        assert_one_line(prune(*argv), words)
        assert not (tmp_path / "draft").exists()
    absent = specjax_main("prune", "--layers", "2", "--data", tmp_path / "absent.py", "--output", tmp_path / "draft")
    assert_one_line(absent, "absent.py")


@pytest.mark.slow
def test_healing_lowers_the_divergence(prune, tmp_path, monkeypatch):
    goals = []
    masks = lambda model, measured, windows, goal, seed: goals.append(goal) or measured
    monkeypatch.setattr("specjax.tools.prune.heal.learn_masks", masks)
    with jax.numpy_dtype_promotion("standard"):  # optax mixes types
        code, _, _ = prune(*SMALL, "--steps", "6", "--importance", "masks")
    assert code == 0 and [goal.hidden_size for goal in goals] == [96]
    losses = [line.split('"loss": ')[1] for line in (tmp_path / "draft" / "log.jsonl").read_text().splitlines()]
    assert len(losses) == 6 and float(losses[-1].split(",")[0]) < float(losses[0].split(",")[0])
    assert specjax.load(tmp_path / "draft").config == specjax.load(tmp_path / "draft" / "pruned").config
