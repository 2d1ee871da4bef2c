"""Reads the log of rounds that ``specjax.text.feedback_log`` writes."""

import dataclasses
import sys
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from ...core.read_files import parse_json
from ...errors import RequestError
from ...text.feedback_log import FILES, FORMAT

_MEND = "write a log with specjax generate --feedback-log"

_DAMAGE = (
    OSError, EOFError, KeyError, IndexError, AttributeError, ValueError, TypeError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip
"""The errors of reading a file that is cut off or changed."""


@dataclasses.dataclass(frozen=True)
class Rounds:
    """The n rounds of a log, oldest first.

    For their fields see ``specjax.core.round_record.Rounds``.

    D is the longest chain and K the largest number of likeliest tokens of any file. Missing drafted
    tokens are -1, and missing likeliest tokens have the log-probability minus infinity.

    Attributes:
      texts: the tokens of each text.
      prompts: int32 [texts], the tokens of each prompt.
      temperature: float32 [texts], see ``specjax.text.feedback_log.draft_temperature``.
      row: int32 [n], the text of each round.
      place, accepted, correction: int32 [n].
      drafted, draft: int32 and float32 [n, D].
      top_ids, top: int32 and float32 [n, D + 1, K].
      drafts: the hashes of the drafts that drafted.
    """

    texts: list[np.ndarray]
    prompts: np.ndarray
    temperature: np.ndarray
    row: np.ndarray
    place: np.ndarray
    accepted: np.ndarray
    correction: np.ndarray
    drafted: np.ndarray
    draft: np.ndarray
    top_ids: np.ndarray
    top: np.ndarray
    drafts: set[str]

    @property
    def checksum(self) -> int:
        """A number that changes with the rounds."""
        arrays = [*self.texts, self.row, self.place, self.accepted, self.drafted, self.top]
        return zlib.crc32(b"".join(np.ascontiguousarray(array).tobytes() for array in arrays))


def list_files(directory: Path) -> list[Path]:
    """The files of a log, oldest first. Raises RequestError where there is none."""
    files = sorted(directory.glob(FILES))
    if not files:
        raise RequestError(f"--log {directory}: no rounds there; {_MEND}")
    return files


def read_log(directory: str | Path, target: dict[str, Any]) -> Rounds:
    """The rounds of all whole files of a log.

    Files that are cut off are left out, and one line on stderr says so.

    Args:
      target: the result of ``text.feedback_log.identify`` for the target that verified the rounds.

    Raises RequestError where there is no whole file, and for a log of another format or target.
    """
    directory = Path(directory)
    files: list[tuple[dict, dict]] = []
    damaged: list[str] = []
    # 1. The headers and arrays of the whole files.
    for path in list_files(directory):
        try:
            with np.load(path) as file:
                arrays = {name: file[name] for name in file.files}
            header = parse_json("the header", str(arrays["header"]))
            known = header["format"] != FORMAT or {"name", "vocab_size", "weights"} <= header["target"].keys()
            if not known or (header["format"] == FORMAT and not _fit(arrays, header["target"]["vocab_size"])):
                raise ValueError("another content")
        except _DAMAGE:
            damaged.append(path.name)
            continue
        _check_header(directory, header, target)
        files.append((header, arrays))
    if not files:
        raise RequestError(f"--log {directory}: {damaged[0]} is cut off; {_MEND}")
    # 2. Their rounds as one.
    rounds = _join(files)
    if damaged:
        print(
            f"feedback log {directory}: {damaged[0]} is cut off; {len(damaged)} of {len(damaged) + len(files)} files "
            f"are left out, and {rounds.row.size:,} rounds are used",
            file=sys.stderr,
        )
    return rounds


def _check_header(directory: Path, header: dict, target: dict) -> None:
    if header["format"] != FORMAT:
        raise RequestError(
            f"--log {directory}: the format {header['format']} is unknown, and {FORMAT} is known; "
            "write the log anew with this version"
        )
    if any(header["target"].get(key) != target[key] for key in ("vocab_size", "weights")):
        raise RequestError(
            f"--log {directory}: written by the target {header['target']['name']!r} with other weights than "
            f"{target['name']!r}; name the log of this target"
        )


def _fit(arrays: dict[str, np.ndarray], vocab_size: int) -> bool:
    """True if the arrays of a file fit one another."""
    n, D = arrays["drafted"].shape
    K = arrays["top"].shape[2]
    rows = arrays["length"].size
    shapes = dict(row=(n,), place=(n,), accepted=(n,), correction=(n,), draft=(n, D), length=(rows,))
    shapes |= dict(top_ids=(n, D + 1, K), top=(n, D + 1, K), prompt_length=(rows,), temperature=(rows,))
    shapes |= dict(tokens=(arrays["length"].sum(),))
    if any(arrays[name].shape != shape for name, shape in shapes.items()):
        return False
    bounds = dict(tokens=(0, vocab_size), drafted=(-1, vocab_size), correction=(0, vocab_size))
    bounds |= dict(top_ids=(0, vocab_size), row=(0, rows), accepted=(0, D + 1))
    within = all(((arrays[name] >= least) & (arrays[name] < most)).all() for name, (least, most) in bounds.items())
    return within and bool(((arrays["place"] >= 0) & (arrays["place"] < arrays["length"][arrays["row"]])).all())


def _join(files: list[tuple[dict, dict]]) -> Rounds:
    """The rounds of several files as one."""
    D = max(arrays["drafted"].shape[1] for _, arrays in files)
    K = max(arrays["top"].shape[2] for _, arrays in files)
    texts = []
    columns = {name: [] for name in ("prompts", "temperature", "row", "place", "accepted", "correction")}
    columns |= {name: [] for name in ("drafted", "draft", "top_ids", "top")}
    for _, arrays in files:
        columns["row"].append(arrays["row"] + len(texts))
        texts += np.split(arrays["tokens"], np.cumsum(arrays["length"])[:-1])
        columns["prompts"].append(arrays["prompt_length"])
        for name in ("temperature", "place", "accepted", "correction"):
            columns[name].append(arrays[name])
        more = D - arrays["drafted"].shape[1]
        wider = K - arrays["top"].shape[2]
        for name, value in (("drafted", -1), ("draft", 0.0)):
            columns[name].append(np.pad(arrays[name], ((0, 0), (0, more)), constant_values=value))
        for name, value in (("top_ids", 0), ("top", -np.inf)):
            columns[name].append(np.pad(arrays[name], ((0, 0), (0, more), (0, wider)), constant_values=value))
    joined = {name: np.concatenate(arrays) for name, arrays in columns.items()}
    return Rounds(texts=texts, drafts={header["draft"]["weights"] for header, _ in files}, **joined)
