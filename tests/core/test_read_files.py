"""One reader for each kind of file: bounds on size and depth, and one line for every other file."""

import gzip
import os
import threading

import pytest

from specjax.core import read_files
from specjax.core.read_files import parse_json, read_bytes, read_json, read_text, read_toml
from specjax.errors import LONGEST, CheckpointError, RequestError, SpecjaxError, one_line
from specjax.text import table_files

READERS = (read_bytes, read_text, read_json, read_toml)


def refusal(run, *args, error=RequestError, **options) -> str:
    with pytest.raises(error) as raised:
        run(*args, **options)
    assert "\n" not in str(raised.value) and len(str(raised.value)) <= LONGEST
    return str(raised.value)


def test_files_are_read(tmp_path):
    file = tmp_path / "file"
    file.write_bytes(b'\xef\xbb\xbf{"a": [1]}\r\n')
    assert read_text(file, "x") == '{"a": [1]}\n' and read_json(file, "x") == {"a": [1]}
    file.write_text("a = [1]\n[b]\n")
    assert read_toml(file, "x") == {"a": [1], "b": {}}
    file.write_bytes(b"a\xffb")
    assert read_text(file, "x", errors="ignore") == "ab"


@pytest.mark.parametrize("read", READERS)
def test_a_file_that_cannot_be_read_is_named(read, tmp_path):
    os.symlink(tmp_path / "loop", tmp_path / "loop")
    for name in ("absent", "loop", "", "a\0b", "x" * 300, "x" * 900_000):
        assert "--flag: cannot be read (" in refusal(read, tmp_path / name, "--flag")
    assert refusal(read, "/dev/zero", "--flag", mend="give another") == "--flag: is a device; give another"


@pytest.mark.parametrize("read", READERS)
def test_a_file_or_a_pipe_beyond_the_bound_is_refused(read, tmp_path, monkeypatch):
    for name in ("LARGEST_JSON", "LARGEST_TOML"):
        monkeypatch.setattr(read_files, name, 9)
    bound = {} if read in (read_json, read_toml) else {"largest": 9}
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_text("1234567890")
    writer = threading.Thread(target=(tmp_path / "pipe").write_text, args=("1234567890",))
    writer.start()
    for name in ("file", "pipe"):
        assert "x: is above the limit of 9 bytes" in refusal(read, tmp_path / name, "x", **bound)
    writer.join()


@pytest.mark.parametrize("text", ["[" * 5000, "[" * 100_000, "[" * 101 + "]" * 101, "{a=" * 200 + "1" + "}" * 200])
def test_toml_that_nests_too_deeply_is_refused(text, tmp_path):
    (tmp_path / "file").write_text(f"a = {text}")
    assert "x nests too deeply; use at most 100 levels" in refusal(read_toml, tmp_path / "file", "x")


@pytest.mark.parametrize("text", ["a", "a = 1\na = 2", f"a = {'9' * 5000}", "\0"])
def test_text_that_is_not_toml_is_refused(text, tmp_path):
    (tmp_path / "file").write_text(text)
    assert "x is not TOML (" in refusal(read_toml, tmp_path / "file", "x")


def test_json_that_nests_too_deeply_or_is_none():
    assert parse_json("tree", '{"a": [1]}') == {"a": [1]}
    for text, named in ("[" * 100_000, "nests too deeply"), ("{", "is not JSON"), (b"\xff\xff", "is not JSON"):
        assert f"tree {named}" in refusal(parse_json, "tree", text, CheckpointError, error=CheckpointError)
    assert "is not JSON" in refusal(parse_json, "tree", "9" * 5000)


def test_text_that_is_not_utf8_is_refused(tmp_path):
    (tmp_path / "file").write_bytes(b"\xff\xfe")
    for read in (read_text, read_toml):
        assert "x: not UTF-8 (" in refusal(read, tmp_path / "file", "x")


def test_messages_are_one_short_line_that_keeps_beginning_and_end():
    assert one_line("a\n b") == "a b" and one_line("ä") == "ä"
    assert one_line("a\x1b[31m\ud800\0") == r"a\x1b[31m\ud800\x00"
    long = str(SpecjaxError(f"the value {'x' * 900_000} is wrong; mend it"))
    assert len(long) <= LONGEST and long.startswith("the value xx") and long.endswith("xx is wrong; mend it")
    assert len(one_line("\udcff" * 1000)) <= LONGEST


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.jsonl.gz"])
def test_a_line_without_an_end_is_refused(name, tmp_path, monkeypatch):
    monkeypatch.setattr(table_files, "LARGEST_JSON", 20)
    opened = gzip.open if name.endswith(".gz") else open
    with opened(tmp_path / name, "wb") as file:
        file.write(b'{"text": "a"}\n' + b" " * 1000)
    rows = table_files.read_rows(tmp_path / name, "rows need text")
    assert next(rows)[1] == {"text": "a"}
    assert "line 2: is above the limit of 20 bytes" in refusal(next, rows)
