"""Names of models: directories they stand for, and one line for every name or hub that fails."""

import errno

import pytest

from specjax.checkpoints import hub
from specjax.errors import CheckpointError, RequestError, SpecjaxError


def refusal(name, error=CheckpointError, **options) -> str:
    with pytest.raises(error) as raised:
        hub.find(name, **options)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_embedded_names_and_directories_are_found(tmp_path):
    assert hub.find("tiny-python") == hub.ZOO / "tiny-python"
    assert hub.find(tmp_path) == hub.find(str(tmp_path)) == tmp_path


@pytest.mark.parametrize("name", ["", " ", "\n"])
def test_an_empty_name_is_refused(name):
    assert "the name of a model is empty" in refusal(name, RequestError)


@pytest.mark.parametrize(
    "name", ["no-such-model", "a/b/c", "./a", "~nobody-here/a", "/a/b", "x" * 5000, "a\0b", None, 3]
)
def test_a_name_that_leads_nowhere_is_refused(name):
    assert "neither embedded (tiny-python" in refusal(name)


def test_a_mistyped_name_gets_the_right_one():
    assert refusal("tiny-pyton").endswith("; did you mean tiny-python?")
    assert refusal("tiny-python-eagel3").endswith("; did you mean tiny-python-eagle3?")
    assert "did you mean" not in refusal("nothing-like-it")


@pytest.mark.parametrize("file", ["model.safetensors", "pytorch_model.bin", "config.json"])
def test_a_file_of_a_model_gets_its_directory(file, tmp_path, monkeypatch):
    (tmp_path / file).touch()
    assert refusal(tmp_path / file) == f"{tmp_path / file} is a file; name its directory {tmp_path}"
    monkeypatch.chdir(tmp_path.parent)  # owner/name would be a hub id
    assert f"name its directory {tmp_path.name}" in refusal(f"{tmp_path.name}/{file}")


def test_a_hub_out_of_reach_is_named(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "no model 'nobody/nothing'" in refusal("nobody/nothing")
    assert "no model 'nobody/nothing' at revision 'v1'" in refusal("nobody/nothing", revision="v1")


def test_torch_files_are_fetched_only_without_safetensors(tmp_path, monkeypatch):
    asked = []

    def snapshot_download(repository, *, revision, allow_patterns):
        asked.append(allow_patterns)
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    hub.find("owner/name")
    (tmp_path / "model.safetensors").write_text("")
    hub.find("owner/name")
    assert ["*.bin" in patterns for patterns in asked] == [False, True, False]
    assert not any("py" in pattern for patterns in asked for pattern in patterns)


@pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS, errno.ENOSPC, errno.ENOTDIR])
def test_a_cache_that_cannot_be_written_is_named(monkeypatch, code):
    def snapshot_download(*args, **options):
        raise OSError(code, "no way", "/home/somebody/.cache")

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    message = refusal("owner/name")
    assert "/home/somebody/.cache" in message and "set HF_HOME to a directory that can be written" in message


@pytest.mark.parametrize("error", [ValueError(""), KeyError("x"), OSError("no network"), RuntimeError("one\ntwo")])
def test_any_error_of_the_hub_is_one_line(monkeypatch, error):
    def snapshot_download(*args, **options):
        raise error

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    assert "the hub says" in refusal("owner/name", SpecjaxError)
