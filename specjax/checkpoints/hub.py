"""Finds the checkpoint of a model or a head: embedded, local, or downloaded from the hub."""

import errno
import os
import re
from collections.abc import Sequence
from pathlib import Path

from ..core.checks import shorten, suggest
from ..errors import CheckpointError, RequestError, SpecjaxError
from .files import GGUF, checkpoint_at, is_gguf

ZOO = Path(__file__).resolve().parent / "zoo"
"""The embedded models and heads, a folder each. Models have a tokenizer, heads have none."""

_FILES = ["*.json", "*.safetensors", "tokenizer.model", "*.txt", "*.jinja"]
_TORCH_FILES = ["*.bin", "*.pt"]
"""Files that are fetched only from repositories without safetensors."""

_OF_MODEL = (".safetensors", ".bin", ".pt", ".json")
"""The ends of the names of files in the directory of a model."""

_UNWRITABLE = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.ENOTDIR, errno.EEXIST}


def embedded() -> list[str]:
    """The names of the models that specjax ships."""
    return [name for name in zoo() if (ZOO / name / "tokenizer.json").exists()]


def zoo() -> list[str]:
    """The names of all models and heads that specjax ships."""
    return sorted(path.parent.name for path in ZOO.glob("*/config.json"))


def find(name: str | Path, revision: str | None = None) -> Path:
    """The directory of the model or head called ``name``, or its GGUF file.

    Args:
      name: an embedded name, a directory, a GGUF file, or a hub id such as "Qwen/Qwen3-0.6B". The
        files of a hub id are downloaded, unless the hub's cache holds them. Of a repository with
        GGUF files, "owner/name:Q4_K_M" is the file with weights of this type, as in llama.cpp.
      revision: a branch, a tag or a commit of the hub's repository.

    Raises CheckpointError where nothing is found, and RequestError for an empty name, or for a
    revision of a name that is not a hub id.
    """
    name = str(name)
    if not name.strip():
        raise RequestError(
            "the name of a model is empty; use an embedded name, a directory or a hub id like owner/name"
        )
    if name in zoo():
        _check_no_revision(name, revision, "an embedded name")
        return ZOO / name
    if (path := _local(name)) is not None:
        _check_no_revision(name, revision, "a directory" if path.is_dir() else "a file")
        return checkpoint_at(path)
    if (file := Path(name)).suffix in _OF_MODEL and os.path.isfile(file):
        raise CheckpointError(f"{name} is a file; name its directory {file.parent}")
    if os.path.isfile(file):
        raise CheckpointError(
            f"{shorten(name, 200)} is no file of a model; name a checkpoint's directory or a GGUF file"
        )
    if name.count("/") == 1 and not name.startswith((".", "/", "~")):
        return _download(name, revision)
    raise CheckpointError(
        f"no model {shorten(name, 200)}: neither embedded ({', '.join(embedded())}) nor a directory nor a GGUF file "
        f"nor a hub id like owner/name{suggest(name, zoo())}"
    )


def _local(name: str) -> Path | None:
    """The directory of this name, or the GGUF file, which may be missing. None for neither."""
    try:
        path = Path(name).expanduser()
        return path if path.is_dir() or is_gguf(path) else None
    except (OSError, RuntimeError, ValueError):  # a name too long, an unknown user's home, a zero byte
        return None


def _check_no_revision(name: str, revision: str | None, kind: str) -> None:
    if revision is not None:
        raise RequestError(
            f"revision is {revision!r}, and {name!r} is {kind}; only hub ids have revisions, leave it out"
        )


def _download(name: str, revision: str | None) -> Path:
    repository, _, kind = name.partition(":")
    try:
        return _fetch(repository, kind, revision)
    except SpecjaxError:
        raise
    except Exception as error:  # no network, repository or permission: its message says which
        if isinstance(error, OSError) and error.errno in _UNWRITABLE:
            raise CheckpointError(
                f"no room for model {repository!r}: {error.strerror} ({error.filename});"
                " set HF_HOME to a directory that can be written"
            ) from None
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        at = "" if revision is None else f" at revision {revision!r}"
        raise CheckpointError(
            f"no model {shorten(repository, 200)}{at}: not a directory here, and the hub says: {reason}"
        ) from None


def _fetch(repository: str, kind: str, revision: str | None) -> Path:
    """The directory of a repository in the hub's cache, or its GGUF file of this weight type."""
    # Here, because nothing else needs the network.
    from huggingface_hub import list_repo_files, snapshot_download

    fetch = lambda files: Path(snapshot_download(repository, revision=revision, allow_patterns=files))
    if kind:
        directory = fetch([f"*{name}*{GGUF}" for name in sorted({kind, kind.upper(), kind.lower()})])
        return _first_part(repository, [str(path) for path in directory.rglob(f"*{GGUF}")], kind)
    directory = fetch(_FILES)
    if not any(directory.glob("*.safetensors")):
        directory = fetch(_FILES + _TORCH_FILES)
    if any(file for pattern in ("*.safetensors", *_TORCH_FILES) for file in directory.glob(pattern)):
        return directory
    files = [file for file in list_repo_files(repository, revision=revision) if is_gguf(file)]
    if not files:
        return directory
    first = _first_part(repository, files, kind)
    fetch([re.sub(r"-00001-of-", "-*-of-", str(first))])
    return directory / first


def _first_part(repository: str, files: Sequence[str], kind: str) -> Path:
    """The one GGUF file among ``files`` with weights of type ``kind``, or of any if it is empty.

    The files that begin with mmproj, which are for images, do not count. Of a split file it is the
    first part. Raises CheckpointError if there is no such file, or more than one.
    """
    files = sorted(file for file in files if not Path(file).name.startswith("mmproj"))
    files = [file for file in files if re.search(r"-\d{5}-of-\d{5}\.gguf$", file) is None or "-00001-of-" in file]
    fit = [file for file in files if re.search(rf"[-._]{re.escape(kind)}(-00001-of-\d{{5}})?\.gguf$", file, re.I)]
    if kind and not fit:
        raise CheckpointError(f"{repository} has no GGUF file with weights of type {shorten(kind)}; name another")
    chosen = fit if kind else files
    if len(chosen) > 1:
        types = [re.search(r"[-._]([A-Za-z0-9_]+)(-00001-of-\d{5})?\.gguf$", file) for file in chosen]
        example = next((match[1] for match in types if match), "Q4_K_M")
        raise CheckpointError(
            f"{repository} has {len(chosen)} GGUF files; name the type of the weights, such as {repository}:{example}"
        )
    return Path(chosen[0])
