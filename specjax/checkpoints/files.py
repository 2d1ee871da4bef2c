"""Files of a checkpoint: JSON, and the files with weights. Only regular files are opened.

A checkpoint is a directory, or a GGUF file.
"""

import re
import stat
from collections.abc import Sequence
from pathlib import Path

from ..core.read_files import read_json as read_value
from ..errors import CheckpointError
from ..heads import KINDS
from .json_fields import show

WEIGHTS = ("model.safetensors", "pytorch_model.bin", *(file for kind in KINDS.values() for file in kind.files))
"""Names of files with weights. The first file found is read, or the files in its index."""

_POINTER = b"version https://git-lfs.github.com/spec/v1"
"""The beginning of the text that git-lfs leaves in place of a large file."""

GGUF = ".gguf"
"""How the names of GGUF files end."""

_FILE_NAME = re.compile(r"(?!\.{1,2}$)[^/\\\0]+")


def check_file(path: Path) -> None:
    """Checks that ``path`` is a regular file, or a link to one. Reading a pipe would wait for ever.

    Raises FileNotFoundError, and CheckpointError for a pipe, a device, a socket or a directory, and
    for a pointer of git-lfs.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise CheckpointError(f"{path}: not a regular file; replace it by a file of the checkpoint")
    with path.open("rb") as file:
        if file.read(len(_POINTER)) == _POINTER:
            raise CheckpointError(f"{path}: a pointer of git-lfs without the file; fetch the file with git lfs pull")


def read_json(path: Path) -> dict:
    """The object in a JSON file. Raises CheckpointError for a file without one."""
    try:
        check_file(path)
        value = read_value(path, str(path), CheckpointError, "mend it, or download it again")
    except FileNotFoundError:
        raise CheckpointError(f"{path.parent}: no {path.name} here; {_mend(path.parent)}") from None
    except OSError as error:
        raise CheckpointError(f"{path}: not readable ({error.strerror}); check its permissions") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} is not JSON with an object at the top; download it again")
    return value


def _mend(directory: Path) -> str:
    """The mend for a directory without the file that was looked for."""
    if (directory / "adapter_config.json").exists():
        return "it is an adapter: name its base as the model, and this directory with adapter, or --adapter"
    if snapshots := sorted(directory.glob("snapshots/*")):
        return f"it is a folder of the hub's cache: name {snapshots[0]}"
    if inner := sorted(directory.glob("*/config.json")):
        return f"name a directory in it, such as {inner[0].parent}"
    if inner := sorted(file for file in directory.glob("*/*") if is_gguf(file)):
        return f"name a file in it, such as {inner[0]}"
    return "name a directory with a Hugging Face checkpoint"


def is_gguf(checkpoint: str | Path) -> bool:
    """Whether a checkpoint is a GGUF file, by its name, or by its first bytes as Ollama's blobs."""
    path = Path(checkpoint)
    return path.suffix.lower() == GGUF and not path.is_dir() or _begins_with(path, b"GGUF")


def _begins_with(path: Path, start: bytes) -> bool:
    """Whether a file begins with these bytes. Files that are not regular or not readable do not."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return file.read(len(start)) == start
    except OSError:
        return False


def checkpoint_at(path: Path) -> Path:
    """The checkpoint at a path: the path itself, or the GGUF file of a directory without weights.

    The files that begin with mmproj, which are for images, and all parts but the first of a split
    file do not count.

    Raises CheckpointError for a directory with several GGUF files.
    """
    if not path.is_dir() or any((path / f"{name}{end}").exists() for name in WEIGHTS for end in ("", ".index.json")):
        return path
    files = sorted(file for file in path.iterdir() if is_gguf(file) and not file.name.startswith("mmproj"))
    parts = [re.sub(r"-\d{5}(?=-of-\d{5}\.gguf$)", "", file.name) for file in files]
    if len(set(parts)) > 1:
        raise CheckpointError(f"{path}: has {len(set(parts))} GGUF files; name one, such as {files[0]}")
    return files[0] if files else path


def weight_files(directory: Path, names: Sequence[str] = WEIGHTS) -> list[Path]:
    """The files with the weights of a checkpoint. A file that an index names may be missing.

    ``names``: the names that such files may have; the first file found counts. As in transformers,
    one file counts before an index, which may be of files that it replaced.

    Raises CheckpointError for an index that is damaged or that names a file outside the directory.
    """
    if is_gguf(directory):
        return [directory]
    for name in names:
        index = directory / f"{name}.index.json"
        if (directory / name).exists():
            return [directory / name]
        if index.exists():
            return [directory / file for file in _indexed(index)]
        stem, end = name.rsplit(".", 1)
        if parts := sorted(directory.glob(f"{stem}-*-of-*.{end}")):  # without their index
            return parts
    return [directory / names[0]]


def _indexed(index: Path) -> list[str]:
    """The names of the files that an index lists, sorted."""
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index}: not an index of weights (no weight_map); download it again")
    for tensor, file in weight_map.items():
        if not isinstance(file, str) or not _FILE_NAME.fullmatch(file):
            raise CheckpointError(
                f"{index}: weight_map puts {show(tensor)} into {show(file)}; name a file in the directory of the index"
            )
    return sorted(set(weight_map.values()))
