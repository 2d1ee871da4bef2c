"""Draft models that are cut from their target."""

from .cut import Sizes, prune
from .heal import prune_target
from .importance import Importance, measure_importance

__all__ = ["Importance", "Sizes", "measure_importance", "prune", "prune_target"]
