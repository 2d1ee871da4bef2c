"""Drafting methods, one file each, and their names.

To add a method, write a file in this folder and add a line to ``METHODS``.
"""

import dataclasses
from collections.abc import Sequence

from ..core.checks import check_known, plain
from ..errors import RequestError
from ..heads.base import Head
from ..loop.drafter import Drafter, Models, Nothing, TargetCopy, TrainedHead
from .adaptive import LENGTHS, Adaptive
from .assistant import AssistantDrafter
from .auto import Auto
from .block import BlockDrafter
from .cascade import Cascade
from .draft_model import DraftModel
from .dynamic_tree import DynamicTree
from .eagle import Eagle, Eagle2, Eagle3
from .early_exit import EarlyExit
from .hydra import Hydra
from .layer_skip import LayerSkip
from .lookahead import Lookahead
from .medusa import Medusa
from .merged import Merged
from .mtp import Mtp
from .ngram import Ngram
from .none import Plain
from .partial_cache import PartialCache
from .partial_cascade import PartialCascade
from .parts.member import Member
from .quantized_self import QuantizedSelf
from .suffix import Suffix
from .switch import Switch
from .token_recycling import TokenRecycling
from .tree import DraftTree

METHODS: dict[str, type[Drafter]] = {
    "auto": Auto,
    "none": Plain,
    "ngram": Ngram,
    "suffix": Suffix,
    "token_recycling": TokenRecycling,
    "lookahead": Lookahead,
    "draft_model": DraftModel,
    "tree": DraftTree,
    "dynamic_tree": DynamicTree,
    "merged": Merged,
    "cascade": Cascade,
    "early_exit": EarlyExit,
    "layer_skip": LayerSkip,
    "quantized_self": QuantizedSelf,
    "partial_cache": PartialCache,
    "partial_cascade": PartialCascade,
    "medusa": Medusa,
    "hydra": Hydra,
    "eagle": Eagle,
    "eagle2": Eagle2,
    "eagle3": Eagle3,
    "mtp": Mtp,
    "block": BlockDrafter,
    "assistant": AssistantDrafter,
    "switch": Switch,
}
"""The class of each method, by the method's name."""

__all__ = [
    "METHODS", "Adaptive", "AssistantDrafter", "Auto", "BlockDrafter", "Cascade", "DraftModel", "DraftTree",
    "DynamicTree",
    "Eagle", "Eagle2", "Eagle3", "EarlyExit", "Hydra", "LayerSkip", "Lookahead", "Medusa", "Merged", "Models",
    "Mtp", "Ngram", "Nothing", "PartialCache", "PartialCascade", "Plain", "QuantizedSelf", "Suffix", "Switch",
    "TokenRecycling", "TrainedHead", "all_options", "check_drafts", "check_options", "default_method",
    "make_drafter", "method_for_head", "needs_of", "own_options", "split_methods",
]  # fmt: skip

_INTERNAL = ("arms", "drafter", "drafters", "ends_together", "head", "length", "shape")
"""Fields of drafters that are no options of a user."""

_ALONE = ("draft_ahead",)
"""Options that a method takes alone, and not as one of a list."""


def make_drafter(method: str | Sequence[str], *, head=None, **options) -> Drafter:
    """The drafter of a method, or of a list of methods between which each row switches.

    Args:
      method: a name, names separated by commas such as "ngram,draft_model", or a list of names.
      head: the configuration of the trained head, for a method that needs one.
      options: the method's own options; with ``draft_length`` also the options of ``Adaptive``.

    Raises RequestError for an unknown method, an empty list, options of other methods, or options
    that do not fit.
    """
    names = split_methods(method)
    check_options(method, options)
    options = {name: plain(value) for name, value in options.items()}
    if names == ["switch"]:
        return _replace(Switch(tuple(_replace(drafter, options) for drafter in Switch().drafters)), options)
    if len(names) > 1:
        return _replace(Switch(tuple(_make(METHODS[name], None, options) for name in names)), options)
    return _make_adaptive(_make(METHODS[names[0]], head, options), options)


def split_methods(method: str | Sequence[str]) -> list[str]:
    """The names in a list of methods. Raises RequestError for an unknown name or an empty list."""
    names = [str(name).strip() for name in (method.split(",") if isinstance(method, str) else method)]
    if not any(names):
        raise RequestError(
            f"the list of methods is empty; name one of {', '.join(METHODS)}, or several such as ngram,draft_model"
        )
    for name in names:
        check_known("method", name, METHODS)
    if len(names) > 1 and any(isinstance(METHODS[name].needs, TrainedHead) for name in names):
        chains = ", ".join(sorted(name for name, drafter in METHODS.items() if issubclass(drafter, Member)))
        raise RequestError(f"a list of methods may name only methods that draft chains: {chains}")
    return names


def own_options(method: str | Sequence[str]) -> tuple[str, ...]:
    """The names of the options that a method, or a list of methods, takes."""
    names = split_methods(method)
    types = [METHODS[name] for name in names]
    if names == ["switch"]:
        types += [type(drafter) for drafter in Switch().drafters]
    elif len(names) > 1:
        types += [Switch]
    elif issubclass(types[0], Member):
        types += [Adaptive]
    alone = names != ["switch"] and len(names) == 1
    return tuple(name for name in _fields_of(types) if alone or name not in _ALONE)


def all_options() -> tuple[str, ...]:
    """The names of the options of all methods."""
    return _fields_of([*METHODS.values(), Adaptive])


def check_options(method: str | Sequence[str], options) -> None:
    """Raises RequestError for an option that is unknown, or that belongs to another method."""
    own = own_options(method)
    known = all_options()
    for name in options:
        check_known("option", name, known)
        if name not in own:
            title = method if isinstance(method, str) else ",".join(method)
            mend = f"it takes {', '.join(own)}" if own else "it takes none"
            raise RequestError(f"option {name!r} belongs to another method than {title!r}; {mend}")


def default_method(drafts: Sequence) -> str:
    """The method for these drafts if the user names none.

    If the first draft is a head, its kind decides, otherwise the number of drafts. ``drafts`` holds
    loaded drafts, or names, which count as language models.
    """
    if drafts and isinstance(drafts[0], Head):
        return method_for_head(drafts[0].config.kind)
    return ("none", "draft_model", "merged")[min(len(drafts), 2)]


def method_for_head(kind: str) -> str:
    """The first method that drafts with heads of this kind."""
    return next(method for method, drafter in METHODS.items() if drafter.needs == TrainedHead(kind))


def check_drafts(method: str | Sequence[str], drafts: int) -> None:
    """Raises RequestError if a method needs more draft models than the number ``drafts``.

    A missing trained head is no error, because embedded targets have heads of their own.
    """
    needs = needs_of(method)
    if not isinstance(needs, Models) or drafts >= needs.least:
        return
    title = method if isinstance(method, str) else ",".join(method)
    wanted = "a draft" if needs.least == 1 else f"{needs.least} drafts and {drafts or 'none'} is given"
    raise RequestError(f"method {title!r} needs {wanted}; name smaller models with draft, or --draft")


def needs_of(method: str | Sequence[str]) -> Nothing | Models | TrainedHead | TargetCopy:
    """What a method, or a list of methods, drafts with. Options do not change it."""
    names = split_methods(method)
    if len(names) == 1 and names != ["switch"]:
        return METHODS[names[0]].needs
    members = Switch().drafters if names == ["switch"] else [METHODS[name]() for name in names]
    return Switch(tuple(members)).needs


def _fields_of(types: Sequence[type]) -> tuple[str, ...]:
    names = (field.name for method in types for field in dataclasses.fields(method))
    return tuple(dict.fromkeys(name for name in names if name not in _INTERNAL))


def _make(method: type[Drafter], head, options: dict) -> Drafter:
    """A drafter of a class, made from its own options among ``options``."""
    if isinstance(method.needs, TrainedHead):
        if head is None:
            raise RequestError(
                f"{method.__name__} drafts with a trained head of kind {method.needs.kind!r}; give its configuration"
            )
        options = options | {"head": head}
    known = {field.name for field in dataclasses.fields(method)}
    return method(**{name: value for name, value in options.items() if name in known})


def _replace(drafter: Drafter, options: dict) -> Drafter:
    """The drafter, with its own options among ``options`` set."""
    known = {field.name for field in dataclasses.fields(drafter)}
    return dataclasses.replace(drafter, **{name: value for name, value in options.items() if name in known})


def _make_adaptive(drafter: Drafter, options: dict) -> Drafter:
    """The drafter, inside ``Adaptive`` if the options ask for it and it drafts chains."""
    length = options.get("draft_length", "fixed")
    check_known("draft_length", length, LENGTHS)
    if length == "fixed" or not isinstance(drafter, Member):
        return drafter
    known = {field.name for field in dataclasses.fields(Adaptive)}
    return Adaptive(drafter, **{name: value for name, value in options.items() if name in known})
