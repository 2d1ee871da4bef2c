"""One command that gives a model its drafter: texts, trainings, tuning and proof."""

from .options import BoostOptions
from .steps import boost

__all__ = ["BoostOptions", "boost"]
