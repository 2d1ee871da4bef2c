"""Drafting methods, one file each, and their names."""

from .base import Drafter
from .draft_model import DraftModel
from .ngram import Ngram
from .none import Plain

METHODS = {"none": Plain, "ngram": Ngram, "draft_model": DraftModel}

__all__ = ["METHODS", "DraftModel", "Drafter", "Ngram", "Plain"]
