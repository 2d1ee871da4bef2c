"""``specjax train``: bad sources and options get one line before a model is loaded."""

import pytest

from specjax.cli.main import main

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
