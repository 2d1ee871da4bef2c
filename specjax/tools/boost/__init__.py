"""One command that gives a model its drafter: texts, trainings, tuning and proof."""

from .steps import BoostOptions, boost

__all__ = ["BoostOptions", "boost"]
