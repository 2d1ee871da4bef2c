"""One command that gives a model its drafter: texts, trainings, tuning and proof."""

from .boost import BoostOptions, boost

__all__ = ["BoostOptions", "boost"]
