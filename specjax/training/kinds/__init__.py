"""The kinds of drafters that can be trained.

Each kind has a file with its shape, its loss and ``KIND``. A new kind needs such a file in this
folder, and its name in the list below.
"""

from . import block, boost, draft, eagle, eagle3, feedback, hydra, medusa, mtp, online
from .shared import Kind, Shape

KINDS: dict[str, Kind] = {
    file.KIND.name: file.KIND for file in (medusa, hydra, eagle, eagle3, mtp, block, draft, boost, feedback, online)
}
"""All kinds by name."""

__all__ = ["KINDS", "Kind", "Shape"]
