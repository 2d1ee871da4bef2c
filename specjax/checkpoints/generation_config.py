"""The sampling options that a checkpoint recommends in ``generation_config.json``."""

import warnings
from pathlib import Path
from typing import Any

from ..core.checks import whole
from ..core.sampling import NUMBERS, sampling_params
from ..errors import RequestError, SpecjaxWarning
from .files import read_json

GENERATION_CONFIGS = ("auto", "none")
"""Whether the options of the file are a request's defaults, as in vLLM."""

_NAMES = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "max_new_tokens")
"""The options that are read, those of vLLM."""


def read_sampling(directory: str | Path) -> dict[str, Any]:
    """The recommended options of a request by their names in ``Options``; {} without the file.

    A value that no request may have is left out with a warning.

    Raises CheckpointError for a file that is not JSON.
    """
    path = Path(directory) / "generation_config.json"
    raw = read_json(path) if path.exists() else {}
    recommended = {name: raw[name] for name in _NAMES if raw.get(name) is not None}
    return {name: value for name, value in recommended.items() if _is_valid(name, value, path)}


def _is_valid(name: str, value, path: Path) -> bool:
    try:
        if name in NUMBERS:
            sampling_params(1, **{name: value})
        else:
            whole(name, value)
    except RequestError as error:
        warnings.warn(f"{path}: {error}; it is ignored", SpecjaxWarning, stacklevel=2)
        return False
    return True
