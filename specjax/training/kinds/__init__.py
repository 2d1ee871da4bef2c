"""The kinds of drafters that can be trained.

Each kind has a file with its shape, its loss and ``KIND``. The file of a trained head has the name
of the head's kind. The other files stand in ``_OTHERS``.
"""

import importlib
import pkgutil

from ... import heads
from .shared import Kind, Shape

_OTHERS = ("draft", "boost", "feedback", "online")
"""The files of kinds that make no new kind of head."""

_FILES = {file.name for file in pkgutil.iter_modules(__path__)}

KINDS: dict[str, Kind] = {
    name: importlib.import_module(f".{name}", __name__).KIND
    for name in (*(kind for kind in heads.KINDS if kind in _FILES), *_OTHERS)
}
"""All kinds by name."""

__all__ = ["KINDS", "Kind", "Shape"]
