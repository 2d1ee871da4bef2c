"""Files that commands write: whole or not at all, and devices as they are."""

import os
import stat
from pathlib import Path

import pytest

from specjax import RequestError
from specjax.cli.arguments import check_output, replace_file, write_output


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
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # tests may run as root, who may write anywhere
    with pytest.raises(RequestError, match="out.json: cannot be written; name a file in a directory that can"):
        check_output(tmp_path / "out.json")
