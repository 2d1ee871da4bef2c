"""Draft models that are cut from their target."""

from .cut import Sizes, prune
from .heal import MEASURES, prune_target
from .importance import Importance, measure_importance
from .masks import learn_masks

__all__ = ["MEASURES", "Importance", "Sizes", "learn_masks", "measure_importance", "prune", "prune_target"]
