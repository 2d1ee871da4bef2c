"""Drafting methods, one file each, and their names."""

import dataclasses
import difflib

from ..errors import RequestError
from .base import Drafter
from .draft_model import DraftModel
from .dynamic_tree import DynamicTree
from .lookahead import Lookahead
from .ngram import Ngram
from .none import Plain
from .suffix import Suffix
from .token_recycling import TokenRecycling
from .tree import DraftTree

METHODS = {
    "none": Plain, "ngram": Ngram, "suffix": Suffix, "token_recycling": TokenRecycling, "lookahead": Lookahead,
    "draft_model": DraftModel, "tree": DraftTree, "dynamic_tree": DynamicTree,
}  # fmt: skip

OPTIONS = tuple(dict.fromkeys(field.name for method in METHODS.values() for field in dataclasses.fields(method)))
"""The options of all methods."""

__all__ = [
    "METHODS",
    "OPTIONS",
    "DraftModel",
    "DraftTree",
    "Drafter",
    "DynamicTree",
    "Lookahead",
    "Ngram",
    "Plain",
    "Suffix",
    "TokenRecycling",
    "make_drafter",
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
