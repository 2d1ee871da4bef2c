"""Names of models: directories they stand for, and one line for every name or hub that fails."""

import errno
import fnmatch

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


def test_a_file_of_another_kind(tmp_path):
    (tmp_path / "notes.txt").touch()
    assert refusal(tmp_path / "notes.txt").endswith(
        "is no file of a model; name a checkpoint's directory or a GGUF file"
    )


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
    monkeypatch.setattr("huggingface_hub.list_repo_files", lambda repository, revision: [])
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


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A repository of these files, of which a download brings those that match into a directory."""

    def make(*files):
        def snapshot_download(name, *, revision, allow_patterns):
            for file in files:
                if any(fnmatch.fnmatch(file, pattern) for pattern in allow_patterns):
                    (tmp_path / file).parent.mkdir(exist_ok=True)
                    (tmp_path / file).touch()
            return str(tmp_path)

        monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
        monkeypatch.setattr("huggingface_hub.list_repo_files", lambda name, revision: list(files))
        return tmp_path

    return make


QUANTISED = "a-Q4_K_M.gguf", "a-Q4_K_S.gguf", "a-Q8_0.gguf", "mmproj-a-Q8_0.gguf", "README.md"
SPLIT = "BF16/a-BF16-00001-of-00002.gguf", "BF16/a-BF16-00002-of-00002.gguf", "mmproj-F16.gguf"


def test_a_type_of_weights_names_a_gguf_file(repository):
    folder = repository(*QUANTISED)
    assert hub.find("owner/name:Q8_0") == folder / "a-Q8_0.gguf"
    assert hub.find("owner/name:q4_k_m") == folder / "a-Q4_K_M.gguf"
    assert not (folder / "a-Q4_K_S.gguf").exists()
    assert "owner/name has no GGUF file with weights of type 'Q4_K'" in refusal("owner/name:Q4_K")


def test_one_gguf_file_needs_no_type_and_brings_all_its_parts(repository):
    folder = repository(*SPLIT)
    assert hub.find("owner/name") == hub.find("owner/name:bf16") == folder / SPLIT[0]
    assert (folder / SPLIT[1]).exists() and not (folder / "mmproj-F16.gguf").exists()


def test_several_gguf_files_need_a_type(repository):
    repository(*QUANTISED)
    assert refusal("owner/name").endswith("has 3 GGUF files; name the type of the weights, such as owner/name:Q4_K_M")


def test_safetensors_go_before_gguf_files(repository):
    folder = repository(*QUANTISED, "model.safetensors")
    assert hub.find("owner/name") == folder
    assert not list(folder.glob("*.gguf"))
