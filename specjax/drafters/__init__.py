"""Drafting methods, one file each, and their names."""

import dataclasses
import difflib
from collections.abc import Sequence

from ..errors import RequestError
from .adaptive import LENGTHS, Adaptive
from .base import Drafter, can_rest, checked, heads_of, parameters, remembered, several
from .block import Block
from .cascade import Cascade
from .draft_model import DraftModel
from .dynamic_tree import DynamicTree
from .eagle import Eagle, Eagle2, Eagle3
from .early_exit import EarlyExit
from .layer_skip import LayerSkip
from .lookahead import Lookahead
from .medusa import Hydra, Medusa
from .merged import Merged
from .mtp import Mtp
from .ngram import Ngram
from .none import Plain
from .suffix import Suffix
from .switch import Switch
from .token_recycling import TokenRecycling
from .tree import DraftTree

METHODS = {
    "none": Plain, "ngram": Ngram, "suffix": Suffix, "token_recycling": TokenRecycling, "lookahead": Lookahead, "draft_model": DraftModel,
    "tree": DraftTree, "dynamic_tree": DynamicTree, "merged": Merged, "cascade": Cascade, "early_exit": EarlyExit, "layer_skip": LayerSkip,
    "medusa": Medusa, "hydra": Hydra, "eagle": Eagle, "eagle2": Eagle2, "eagle3": Eagle3, "mtp": Mtp, "block": Block, "switch": Switch,
}  # fmt: skip

OPTIONS = tuple(
    dict.fromkeys(
        field.name
        for method in (*METHODS.values(), Adaptive)
        for field in dataclasses.fields(method)
        if field.name not in ("drafter", "drafters", "head")
    )
)
"""The options of all methods."""

__all__ = [
    "METHODS", "OPTIONS", "Adaptive", "Block", "Cascade", "DraftModel", "DraftTree", "Drafter", "DynamicTree", "Eagle", "Eagle2", "Eagle3", "EarlyExit", "Hydra",
    "LayerSkip", "Lookahead", "Medusa", "Merged", "Mtp", "Ngram", "Plain", "Suffix", "Switch", "TokenRecycling", "check_drafts", "checked", "default_method",
    "heads_of", "make_drafter", "parameters", "remembered", "several",
]  # fmt: skip


def make_drafter(method: str | Sequence[str], **options) -> Drafter:
    """The drafter of a method, or of a list of methods between which each row switches ("ngram,draft_model" is such a list). Options
    of other methods are passed over, so that one set serves all.

    Raises RequestError for an unknown method or option, an empty list, or options that do not fit.
    """
    names = [name.strip() for name in (method.split(",") if isinstance(method, str) else method)]
    for name in options:
        if name not in OPTIONS:
            near = difflib.get_close_matches(name, OPTIONS, 1)
            raise RequestError(f"option {name!r} is unknown; " + (f"did you mean {near[0]}?" if near else f"use {', '.join(OPTIONS)}"))
    if not any(names):
        raise RequestError(f"the list of methods is empty; name one of {', '.join(METHODS)}, or several such as ngram,draft_model")
    for name in names:
        if name not in METHODS:
            raise RequestError(f"method {name!r} is unknown; use one of {', '.join(METHODS)}")
    if names == ["switch"]:
        return _with(Switch(tuple(_with(drafter, options) for drafter in Switch().drafters)), options)
    if len(names) > 1:
        return _with(Switch(tuple(_with(METHODS[name](), options) for name in names)), options)
    return _controlled(_with(METHODS[names[0]](), options), options)


def default_method(drafts: Sequence) -> str:
    """The method where none is named and these drafts are given: that of a head's kind if the first is one, or else by their number."""
    kind = getattr(getattr(drafts[0], "config", None), "kind", None) if drafts else None
    if kind:
        return next(method for method, drafter in METHODS.items() if kind in heads_of(drafter()))
    return ("none", "draft_model", "merged")[min(len(drafts), 2)]


def check_drafts(method: str, drafter: Drafter, drafts: int) -> None:
    """Raises RequestError where the drafter of ``method`` needs more drafts than so many. Heads have defaults, see ``heads.load.chosen``."""
    needed = 0 if heads_of(drafter) else int(drafter.needs_draft)
    if drafts < needed:
        wanted = "a draft" if needed == 1 else f"{needed} drafts and {drafts or 'none'} is given"
        raise RequestError(f"method {method!r} needs {wanted}; name smaller models with draft, or --draft")


def _with(drafter: Drafter, options: dict) -> Drafter:
    """The drafter with those of the options that are its own."""
    known = {field.name for field in dataclasses.fields(drafter)}
    return dataclasses.replace(drafter, **{name: value for name, value in options.items() if name in known})


def _controlled(drafter: Drafter, options: dict) -> Drafter:
    """A chain drafter with its draft length controlled, if the options say so."""
    length = options.get("draft_length", "fixed")
    if length not in LENGTHS:
        raise RequestError(f"draft_length {length!r} is unknown; use one of {', '.join(LENGTHS)}")
    if length == "fixed" or not can_rest(drafter):
        return drafter
    return Adaptive(drafter, **{field.name: options[field.name] for field in dataclasses.fields(Adaptive) if field.name in options})
