"""``specjax grow``: a model and a head, and what bad input gets."""

import json
import subprocess
import sys

import pytest
from support.command_line import assert_one_line, models, specjax_main
from support.models import TINY, random_head

import specjax
from specjax import load_drafter, save_head
from specjax.checkpoints.config import to_hf
from specjax.heads import EagleConfig, EagleHead, Head

LARGE = TINY.replace(hidden_size=40, num_layers=3, vocab_size=70, tie_embeddings=False)


@pytest.fixture
def shape(tmp_path):
    """A function from changes of a shape to its file."""

    def write(**changes):
        path = tmp_path / f"shape{len(list(tmp_path.iterdir()))}.json"
        path.write_text(json.dumps(to_hf(LARGE) | changes))
        return path

    return write


def test_a_model_and_a_head(specjax_main, models, shape, tmp_path):
    """The printed directories are checkpoints of the shape, and the head is one for the grown model."""
    target, like, grown = specjax.load(models["target"]), shape(), tmp_path / "grown"
    config = EagleConfig(TINY.replace(num_layers=1), target_layers=target.config.num_layers)
    save_head(Head(random_head(EagleHead, config), config, "eagle"), tmp_path / "eagle")
    grow = ("grow", "--model", models["target"], "--like", like, "--output")
    code, out, err = specjax_main(*grow, grown)
    assert (code, err) == (0, "")
    assert out.startswith(f"{grown}: {models['target']} in the shape of {like}, ") and f"--model {grown}\n" in out
    model = specjax.load(grown)
    assert model.config.hidden_size == 40 and model.tokenizer.get_vocab() == target.tokenizer.get_vocab()
    code, out, err = specjax_main(*grow, tmp_path / "head", "--draft", tmp_path / "eagle")
    assert (code, err) == (0, "") and f"--draft {tmp_path / 'head'}\n" in out
    head = load_drafter(tmp_path / "head", model)
    assert isinstance(head, Head) and head.config.layers.hidden_size == 40


def test_bad_input_gets_one_line(specjax_main, models, shape, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("")
    model, new = ("--model", models["target"]), tmp_path / "new"
    grow = lambda like, *more, output=new: specjax_main("grow", *model, "--like", like, "--output", output, *more)
    for found, words in (
        (specjax_main("grow", *model, "--output", new), "--like"),
        (specjax_main("grow", *model, "--like", shape()), "--output"),
        (grow(""), "--like: is empty"),
        (grow(tmp_path / "absent.json"), "no model shape"),
        (grow(tmp_path / "full"), "no config.json here"),
        (grow(tmp_path / "full" / "file"), "file"),
        (grow(shape(hidden_size=16)), "hidden_size is 16; it must be at least 32"),
        (grow(shape(hidden_act="relu")), "hidden_act"),
        (grow(shape(), "--draft", models["draft"]), "it drafts for a grown model as it is"),
        (grow(shape(), "--draft", "no-such-head"), "no-such-head"),
        (grow(shape(), output=tmp_path / "full"), "exists and is not empty"),
        (grow(shape(), output="/proc/none"), "/proc/none: cannot be written"),
    ):
        assert_one_line(found, words)
    assert not new.exists()


@pytest.mark.slow
def test_an_interrupted_process_leaves_nothing(models, shape, tmp_path):
    """Ctrl-C after the first of many files."""
    directory = tmp_path / "grown"
    program = (
        "import os, signal, specjax.checkpoints.shards as shards; from specjax.cli.main import main; shards.SHARD = 10000\n"
        "save = shards.save_file\n"
        "shards.save_file = lambda *a, **b: (save(*a, **b), os.kill(os.getpid(), signal.SIGINT))\n"
        "raise SystemExit(main())"
    )
    argv = ["grow", "--model", models["target"], "--like", str(shape()), "--output", str(directory)]
    process = subprocess.run([sys.executable, "-c", program, *argv], capture_output=True, text=True)
    assert (process.returncode, process.stdout, process.stderr) == (130, "", "specjax: interrupted\n")
    assert not directory.exists()
