"""Files that commands write: whole or not at all, and refused before the work where they cannot be."""

import os
import stat
from argparse import Namespace
from pathlib import Path

import pytest

from specjax import RequestError
from specjax.cli.output import check_directory, check_new_directory, check_output, replace_file, write_output


def test_a_file_is_replaced_as_a_whole(tmp_path):
    """A reader between two writers sees the first text whole; the later writer wins."""
    file = tmp_path / "out.json"
    file.write_text("old")
    with replace_file(file) as first, replace_file(file) as second:
        first.write_text("first")
        second.write_text("sec")
        assert file.read_text() == "old"
    assert file.read_text() == "first"
    assert os.listdir(tmp_path) == ["out.json"]


def test_an_interrupted_writer_leaves_the_old_file(tmp_path):
    file = tmp_path / "out.json"
    file.write_text("old")
    with pytest.raises(OSError, match="half"), replace_file(file) as new:
        _write_half(new)
    assert file.read_text() == "old" and os.listdir(tmp_path) == ["out.json"]


def _write_half(file: Path) -> None:
    file.write_text("ne")
    raise OSError("half")


def test_devices_and_links_stay_what_they_are(tmp_path):
    write_output(Path("/dev/null"), "text")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write_output(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real").read_text() == "new"


def test_a_directory_that_cannot_be_written_is_named_before_the_work(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write anywhere
    with pytest.raises(RequestError, match="out.json: cannot be written; name a file in a directory that can"):
        check_output(Namespace(output=tmp_path / "out.json"))
    with pytest.raises(RequestError, match="out: cannot be written; name a directory that can"):
        check_directory(tmp_path / "out")


def test_names_that_no_file_can_have_are_refused(tmp_path):
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "dangling").symlink_to(tmp_path / "absent" / "file")
    (tmp_path / "file").touch()
    for file in ("loop", "dangling", "x" * 300, "a\0b", "absent/file", "", "file/below"):
        with pytest.raises(RequestError, match="cannot be written"):
            check_output(Namespace(output=tmp_path / file))
    for directory in ("loop", "x" * 300, "a\0b", "file", "file/below", "x" * 300 + "/below"):
        with pytest.raises(RequestError, match="cannot be written"):
            check_new_directory(tmp_path / directory)
    check_output(Namespace(output=Path("/dev/null")))
    check_output(Namespace(output=tmp_path / "new"))
    check_new_directory(tmp_path / "absent" / "below")
    assert sorted(os.listdir(tmp_path)) == ["dangling", "file", "loop"]


def test_an_output_that_is_an_input_is_refused(tmp_path):
    file = tmp_path / "data.txt"
    file.write_text("text")
    (tmp_path / "link").symlink_to(file)
    for output in (file, tmp_path / "link", tmp_path / "." / "data.txt"):
        for inputs in ({"data": [file]}, {"prompts": file}, {"json_schema": f"@{file}"}, {"costs": str(file)}):
            with pytest.raises(RequestError, match="which it would replace; name another file"):
                check_output(Namespace(output=output, **inputs))
    check_output(Namespace(output=file, model="tiny-python", data=[tmp_path], batch=3, draft=()))


def test_a_directory_with_files_is_not_new(tmp_path):
    check_new_directory(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(RequestError, match="exists and is not empty; name a new directory"):
        check_new_directory(tmp_path)
