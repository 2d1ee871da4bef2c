"""What commands write: checks of ``--output`` before the work, and files that are never half."""

import argparse
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import RequestError
from ..parallel import is_first_host


def check_output(args: argparse.Namespace) -> None:
    """Raises RequestError if ``--output`` is an input or cannot be written, before the work."""
    if args.output is None:
        return
    for flag, values in vars(args).items():
        values = values if isinstance(values, list | tuple) else [values]
        if flag != "output" and any(_is_same(args.output, value) for value in values):
            name = f"--{flag.replace('_', '-')}"
            raise RequestError(f"--output {args.output} is a file of {name}, which it would replace; name another file")
    try:
        file = args.output.resolve()  # a link to itself raises RuntimeError
        fits = not file.is_dir() and os.access(file if file.exists() else file.parent, os.W_OK)
        if fits and (file.is_file() or not file.exists()):
            tempfile.TemporaryFile(dir=file.parent).close()
    except (OSError, RuntimeError, ValueError):
        fits = False
    if not fits:
        raise RequestError(f"--output {args.output}: cannot be written; name a file in a directory that can be written")


def check_directory(directory: Path, flag: str = "--output") -> None:
    """Raises RequestError where a directory cannot be made or written. It runs before the work."""
    try:
        full = directory.resolve()
        nearest = next(place for place in (full, *full.parents) if place.exists())
        fits = nearest.is_dir() and os.access(nearest, os.W_OK)
        if fits:
            tempfile.TemporaryDirectory(dir=nearest).cleanup()
    except (OSError, RuntimeError, ValueError):
        fits = False
    if not fits:
        raise RequestError(f"{flag} {directory}: cannot be written; name a directory that can be written")


def check_new_directory(directory: Path) -> None:
    """Raises RequestError where the directory of ``--output`` holds files or cannot be written."""
    check_directory(directory)
    if directory.exists() and any(directory.iterdir()):
        raise RequestError(f"--output {directory} exists and is not empty; name a new directory")


def _is_same(file: Path, value: Any) -> bool:
    """Whether the value of a flag names ``file``, alone or after an @."""
    name = str(value).removeprefix("@") if isinstance(value, str | Path) else ""
    return os.path.isfile(file) and os.path.isfile(name) and os.path.samefile(file, name)


@contextmanager
def replace_file(file: Path) -> Iterator[Path]:
    """Yields a new file, which replaces ``file`` at the end of the block.

    A reader never sees half a file. If two commands write one file, it has the whole text of the
    later one. A device or a pipe is written directly.
    """
    file = file.resolve()
    if file.exists() and not file.is_file():
        yield file
        return
    handle, new = tempfile.mkstemp(dir=file.parent, prefix=".specjax-")
    os.close(handle)
    try:
        yield Path(new)
        os.chmod(new, file.stat().st_mode if file.exists() else 0o666 & ~_umask())
        os.replace(new, file)
    finally:
        Path(new).unlink(missing_ok=True)


def write_output(file: Path | None, text: str) -> None:
    """Writes ``text`` to the file of ``--output``, if it was given, on the first host."""
    if file is not None and is_first_host():
        with replace_file(file) as new:
            new.write_text(text)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
