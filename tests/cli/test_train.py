"""``specjax train``: bad sources and options get one line before a model is loaded."""

import os

import pytest

from specjax.cli.main import main
from specjax.errors import RequestError
from specjax.training.recipe import read_recipe
from specjax.training.run import check_run, train

FAULTS = {
    "no such file": (("--data", "absent.jsonl=0.7", "here.txt=0.3"), "--data absent.jsonl: no such file or directory"),
    "a weight of nothing": (("--data", "here.txt=0"), "weight 0.0 of here.txt must be above 0"),
    "a negative weight": (("--data", "here.txt=-2"), "weight -2.0 of here.txt must be above 0"),
    "a weight of letters": (("--data", "here.txt=most"), "weight 'most' is no number; use PATH=WEIGHT"),
    "one weight of two": (("--data", "here.txt=1", "here.txt"), "--data here.txt has no weight and others have"),
    "an empty column": (("--data", "here.txt", "--column", ""), "--column: is empty"),
    "a column of no data": (("--column", "body"), "--column names a column of --data; give --data"),
    "drafts of another kind": (("--drafts", "2"), "--drafts belongs to kind boost, not to mtp"),
    "one boosted draft": (("--recipe", "boost", "--drafts", "1"), "--drafts: must be a whole number from 2 to 16"),
}


FOREIGN = {
    "a head": {"config.json": "{}", "model.safetensors": "weights"},
    "any file": {"notes.txt": "text"},
    "a training of another kind": {"recipe.json": '{"kind": "eagle3"}', "config.json": "{}"},
    "a damaged recipe": {"recipe.json": "[1]", "config.json": "{}"},
}


@pytest.mark.parametrize("recipe", ["mtp", "boost"])
@pytest.mark.parametrize("case", FOREIGN)
def test_files_that_are_no_training_of_this_kind_stay(case, recipe, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("specjax.checkpoints.load.load", lambda *args: pytest.fail("a model was loaded"))
    held = tmp_path / "2" if recipe == "boost" else tmp_path
    held.mkdir(exist_ok=True)
    for name, text in FOREIGN[case].items():
        (held / name).write_text(text)
    assert main(["train", "--recipe", recipe, "--output", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert "name another --output" in error and str(held) in error and error.count("\n") == 1
    assert {file.name: file.read_text() for file in held.iterdir()} == FOREIGN[case]


def test_a_library_call_leaves_foreign_files_too(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    for output in (tmp_path, tmp_path / "config.json"):
        with pytest.raises(RequestError, match="name another --output"):
            train(read_recipe("mtp"), None, output=output)
    assert os.listdir(tmp_path) == ["config.json"]


@pytest.mark.parametrize(
    "names", [(), (".lock",), ("heal.toml", "pruned"), ("recipe.json", "log.jsonl", "config.json")]
)
def test_new_directories_and_trainings_of_this_kind_pass(names, tmp_path):
    for name in names:
        (tmp_path / name).write_text('{"kind": "mtp"}')
    check_run("mtp", tmp_path)
    check_run("mtp", tmp_path / "absent")


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_gets_one_line(fault, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here.txt").write_text("text")
    arguments, named = FAULTS[fault]
    try:
        code = main(["train", "--recipe", "mtp", *arguments])
    except SystemExit as end:
        code = end.code
    error = capsys.readouterr().err
    assert code == 2 and named in error and error.count("\n") == 1
