"""Recipes that are shipped, and faulty recipes and data, which get one line."""

from pathlib import Path

import pytest

import specjax
from specjax import RequestError
from specjax.cli.main import main
from specjax.training.kinds import KINDS
from specjax.training.recipe import read_recipe


def test_recipes_that_are_shipped_can_be_read():
    files = sorted((Path(__file__).parents[2] / "configs").glob("*.toml"))
    assert len(files) >= 7
    for file in files:
        recipe = read_recipe(file)
        assert recipe.kind in file.stem
        assert recipe.model
    for kind in KINDS:
        assert read_recipe(kind).kind == kind


WRONG = {
    "kind = 'egale3'": "did you mean eagle3",
    "kind = []": "kind [] is unknown; use one of medusa",
    "kind = {a = 1}": "kind {'a': 1} is unknown",
    "kind = 1979-05-27": "kind datetime.date(1979, 5, 27) is unknown",
    f"kind = {'[' * 5000}": "nests too deeply; use at most 100 levels",
    f"kind = 'medusa'\nsteps = '{'x' * 9000}'": "steps = 'xxx",
    "kind = 'eagle3'\nstep = 5": "'step' is unknown; did you mean steps",
    "kind = 'eagle3'\n[loss]\ndecai = 5": "[loss]: key 'decai' is unknown; did you mean decay",
    "kind = 'medusa'\n[head]\nnum_heads = 'two'": "num_heads = 'two' is not a whole number",
    "kind = 'block'\n[head]\nmarkov = 'deep'": "markov 'deep' is unknown",
    "kind = 'medusa'\nlength = 4": "length 4 is too short for a drafter that reaches 5 tokens ahead; 6 is the least",
    "kind = 'mtp'\n[head]\nmodules = 0": "[head] modules 0 is too small; 1 is the least",
    "kind = 'block'\n[head]\nblock_size = 1": "[head] block_size 1 is too small; 2 is the least",
    "kind = 'block'\n[head]\nmask_token = -2": "[head] mask_token -2 is too small; -1 is the least",
    "kind = 'mtp'\n[head]\nmodules = 4": "steps = 3 leaves out some of the 4 modules",
    "kind = 'mtp'\n[head]\nmodules = 2\nnum_layers = 2": "no checkpoint holds 2 modules of 2 layers",
    "kind = 'medusa'\nsteps = 0": "steps 0 is too small",
    "kind = 'medusa'\nseed = -1": "seed -1 is too small; 0 is the least",
    "kind = 'medusa'\nseed = 4294967296": "seed 4294967296 is too large; 4294967295 is the most",
    "kind = 'medusa'\nprompts = -1": "prompts -1 is too small; 0 is the least",
    "kind = 'eagle'\n[head]\nnum_layers = 0": "[head] num_layers 0 is too small; 1 is the least",
    "kind = 'draft'\n[head]\nnum_layers = 1000": "[head] num_layers 1000 is too large; 256 is the most",
    "kind = 'draft'\n[head]\nhidden_size = -8": "[head] hidden_size -8 is too small; 0 is the least",
    "kind = 'medusa'\n[head]\nnum_heads = 0": "[head] num_heads 0 is too small; 1 is the least",
    "kind = 'block'\n[head]\nmarkov_rank = -1": "[head] markov_rank -1 is too small; 0 is the least",
    "kind = 'block'\n[loss]\nanchors = 0": "[loss] anchors 0 is too small; 1 is the least",
    "kind = 'medusa'\n[loss]\nteacher = 1.5": "[loss] teacher 1.5 is too large; 1.0 is the most",
    "kind = 'medusa'\n[loss]\ndecay = nan": "[loss] decay nan is too small; 0 is the least",
    "kind = 'medusa'\n[optimizer]\nrate = 20.0": "[optimizer] rate 20.0 is too large; 10.0 is the most",
    "kind = 'medusa'\n[mesh]\nmodel = 0": "[mesh] model 0 is too small; 1 is the least",
    "kind = 'medusa'\non_policy = 'draft'": "on_policy 'draft' needs",
    "kind = 'draft'\ntemperature = 0": "add on_policy, or leave it out",
    "kind = 'draft'\non_policy = 'target'\ntemperature = -1": "temperature -1 is too small; 0 is the least",
    "kind = 'feedback'\non_policy = 'target'": "a log of rounds has its text; leave on_policy out",
    "kind = 'online'\non_policy = 'target'": "learns from text that the target writes anyway; leave on_policy out",
    "kind = 'feedback'\n[loss]\nobjective = 'reward'": "objective 'reward' is unknown; use distill or pseudo or policy",
    "kind = 'feedback'\n[loss]\npositions = 'none'": "positions 'none' is unknown; use rejected or all",
    "kind = 'feedback'\n[loss]\nreplay = 1.0": "[loss] replay 1.0 is too large; 0.9 is the most",
    "kind = 'medusa'\nbatch = 3\n[mesh]\ndata = 2": "cannot be split",
    "kind = 'medusa'\n[optimizer]\nname = 'sgd'": "optimizer 'sgd' is unknown",
    "kind = ": "not TOML",
}


def test_bad_recipes_get_one_line(tmp_path):
    for toml, message in WRONG.items():
        (tmp_path / "r.toml").write_text(toml)
        with pytest.raises(RequestError) as error:
            read_recipe(tmp_path / "r.toml")
        assert message in str(error.value), toml
        assert "\n" not in str(error.value)


def test_the_command_exits_with_2_and_one_line(tmp_path, capsys, small, text):
    specjax.save(small, tmp_path / "model")
    (tmp_path / "empty").mkdir()
    (tmp_path / "blank.txt").write_text(" \n")
    (tmp_path / "short.txt").write_text("ABCDE" * 10)
    (tmp_path / "broken.jsonl").write_text('{"text": "A"}\n{"text"')
    (tmp_path / "chat.jsonl").write_text(
        '{"messages": [{"role": "user", "content": "A"}, {"role": "assistant", "content": "B"}]}'
    )
    (tmp_path / "taps.toml").write_text("kind = 'eagle3'\nlength = 12\n[head]\ntaps = [0, 7]\n")
    (tmp_path / "vocabulary.toml").write_text("kind = 'eagle3'\nlength = 12\n[head]\ndraft_vocab_size = 99\n")
    (tmp_path / "mesh.toml").write_text("kind = 'mtp'\nbatch = 64\nlength = 12\n[mesh]\ndata = 64\n")
    recipe = lambda name, *more: ("--recipe", name, "--length", 12, *more)
    cases = {
        "give a kind": recipe("eagel3"),
        "no such file or directory": recipe("mtp", "--data", tmp_path / "missing"),
        "no file there": recipe("mtp", "--data", tmp_path / "empty"),
        "no text there": recipe("mtp", "--data", tmp_path / "blank.txt"),
        "broken.jsonl, line 2: the line is not JSON": recipe("mtp", "--data", tmp_path / "broken.jsonl"),
        "line 1: no column 'body'; the row has 'text'": recipe(
            "mtp", "--data", tmp_path / "broken.jsonl", "--column", "body"
        ),
        "chat.jsonl, line 1: the model's tokenizer has no chat template": recipe(
            "mtp", "--data", tmp_path / "chat.jsonl"
        ),
        "the smallest source has 49 tokens": recipe(
            "mtp", "--data", f"{tmp_path / 'short.txt'}=0.5", f"{text}=0.5", "--length", 30, "--prompts", 0
        ),
        "windows of 30 need 61": recipe(
            "mtp", "--data", tmp_path / "blank.txt", tmp_path / "short.txt", "--length", 30, "--prompts", 0
        ),
        "context is 64 tokens; 63 is the most": ("--recipe", "mtp", "--data", text),
        "taps 0, 7 do not fit": ("--recipe", tmp_path / "taps.toml", "--data", text, "--prompts", 0),
        "draft_vocab_size 99 does not fit": ("--recipe", tmp_path / "vocabulary.toml", "--data", text, "--prompts", 0),
        "needs 64 devices": ("--recipe", tmp_path / "mesh.toml", "--data", text),
    }
    for message, arguments in cases.items():
        code = main(
            ["train", "--model", str(tmp_path / "model"), "--output", str(tmp_path / "out"), *map(str, arguments)]
        )
        error = capsys.readouterr().err
        assert code == 2, message
        assert error.count("\n") == 1 and error.startswith("specjax: error:"), error
        assert message in error, error
