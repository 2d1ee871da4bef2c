"""Drafting methods, one file each, and their names."""

import dataclasses
import difflib

from ..errors import RequestError
from .base import Drafter
from .cascade import Cascade
from .draft_model import DraftModel
from .dynamic_tree import DynamicTree
from .early_exit import EarlyExit
from .layer_skip import LayerSkip
from .merged import Merged
from .ngram import Ngram
from .none import Plain
from .suffix import Suffix
from .token_recycling import TokenRecycling
from .tree import DraftTree

METHODS = {
    "none": Plain, "ngram": Ngram, "suffix": Suffix, "token_recycling": TokenRecycling, "draft_model": DraftModel, "tree": DraftTree,
    "dynamic_tree": DynamicTree, "merged": Merged, "cascade": Cascade, "early_exit": EarlyExit, "layer_skip": LayerSkip,
}  # fmt: skip

OPTIONS = tuple(dict.fromkeys(field.name for method in METHODS.values() for field in dataclasses.fields(method)))
"""The options of all methods."""

__all__ = [
    "METHODS",
    "OPTIONS",
    "Cascade",
    "DraftModel",
    "DraftTree",
    "Drafter",
    "DynamicTree",
    "EarlyExit",
    "LayerSkip",
    "Merged",
    "Ngram",
    "Plain",
    "Suffix",
    "TokenRecycling",
    "check_drafts",
    "default_method",
    "make_drafter",
    "several",
]


def make_drafter(method: str, **options) -> Drafter:
    """The drafter of a method. Options of other methods are passed over, so that one set serves all.

    Raises RequestError for an unknown method or option, or options that do not fit.
    """
    if method not in METHODS:
        raise RequestError(f"method {method!r} is unknown; use one of {', '.join(METHODS)}")
    for name in options:
        if name not in OPTIONS:
            near = difflib.get_close_matches(name, OPTIONS, 1)
            raise RequestError(f"option {name!r} is unknown; " + (f"did you mean {near[0]}?" if near else f"use {', '.join(OPTIONS)}"))
    known = {field.name for field in dataclasses.fields(METHODS[method])}
    return METHODS[method](**{name: value for name, value in options.items() if name in known})


def default_method(drafts: int) -> str:
    """The method where none is named and so many drafts are given."""
    return ("none", "draft_model", "merged")[min(drafts, 2)]


def several(drafter: Drafter) -> bool:
    """Whether the method uses all drafts that are given, rather than the first."""
    return getattr(drafter, "several", False)


def check_drafts(method: str, drafts: int) -> None:
    """Raises RequestError where ``method`` needs more drafts than so many."""
    needed = METHODS[method].needs_draft
    if drafts < needed:
        wanted = "a draft" if needed == 1 else f"{needed} drafts and {drafts or 'none'} is given"
        raise RequestError(f"method {method!r} needs {wanted}; name smaller models with draft, or --draft")
