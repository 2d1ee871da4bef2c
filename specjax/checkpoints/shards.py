"""Writes a checkpoint into a new directory, tensor by tensor, in files of a few gigabytes."""

import errno
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save_file

from ..errors import CheckpointError, StorageError
from .files import WEIGHTS

SHARD = 2 << 30
"""Bytes of tensors in one file."""

_FULL = errno.ENOSPC, errno.EDQUOT, errno.EFBIG


@contextmanager
def new_directory(directory: str | Path, size: int) -> Iterator[Path]:
    """Yields an empty directory with room for ``size`` bytes, and empties it after an error.

    Raises CheckpointError for a directory that has files or cannot be written, and StorageError for
    a disk that is too small.
    """
    directory = Path(os.path.expanduser(directory))
    with _report(directory):
        is_new = not directory.exists()
        directory.mkdir(parents=True, exist_ok=True)
        if any(directory.iterdir()):
            raise CheckpointError(f"{directory}: exists and is not empty; name a new directory")
        try:
            tempfile.TemporaryFile(dir=directory).close()
            if (free := shutil.disk_usage(directory).free) < size:
                gigabytes = f"{size / 1e9:.3g} GB are needed and {free / 1e9:.3g} GB are free"
                raise StorageError(f"{directory}: {gigabytes}; make room, or name another directory")
            yield directory
        except BaseException:  # Ctrl-C too
            for path in directory.iterdir():
                path.unlink()
            if is_new:
                directory.rmdir()
            raise


def write_shards(directory: Path, tensors: Iterable[tuple[str, np.ndarray]]) -> None:
    """Writes tensors into one file, or into several files of ``SHARD`` bytes with an index.

    The tensors of one file are in memory at a time.
    """
    shards = []
    waiting = {}
    size = 0
    for name, tensor in tensors:
        if waiting and size + tensor.nbytes > SHARD:
            shards.append(_write(directory, len(shards), waiting))
            waiting = {}
            size = 0
        waiting[name] = tensor
        size += tensor.nbytes
    shards.append(_write(directory, len(shards), waiting))
    if len(shards) == 1:
        (directory / _file(0)).rename(directory / WEIGHTS[0])
        return
    index = {"metadata": {"total_size": sum(sum(sizes.values()) for sizes in shards)}, "weight_map": {}}
    for i, sizes in enumerate(shards):
        file = f"model-{i + 1:05}-of-{len(shards):05}.safetensors"
        (directory / _file(i)).rename(directory / file)
        index["weight_map"] |= dict.fromkeys(sizes, file)
    (directory / f"{WEIGHTS[0]}.index.json").write_text(json.dumps(index, indent=2) + "\n")


def _file(number: int) -> str:
    return f"model-{number + 1:05}.safetensors"


def _write(directory: Path, number: int, tensors: dict[str, np.ndarray]) -> dict[str, int]:
    """Writes one file. Returns the bytes of its tensors."""
    path = directory / _file(number)
    save_file(tensors, path, metadata={"format": "pt"})
    path.chmod(0o644)  # safetensors lets only the owner read the file
    return {name: tensor.nbytes for name, tensor in tensors.items()}


@contextmanager
def _report(directory: Path) -> Iterator[None]:
    """Turns errors of the file system in the block into one line."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        full = any(os.strerror(code) in str(error) for code in _FULL)
        kind, mend = (StorageError, "make room, or name") if full else (CheckpointError, "name")
        raise kind(f"{directory}: cannot be written ({error}); {mend} another directory") from None
