"""Drafting methods, one file each, and their names."""

import dataclasses

from ..errors import RequestError
from .base import Drafter
from .draft_model import DraftModel
from .ngram import Ngram
from .none import Plain

METHODS = {"none": Plain, "ngram": Ngram, "draft_model": DraftModel}

__all__ = ["METHODS", "DraftModel", "Drafter", "Ngram", "Plain", "make_drafter"]


def make_drafter(method: str, **options) -> Drafter:
    """The drafter of a method. Options that it does not have are passed over, so that one set serves all methods.

    Raises RequestError for an unknown method, or options that do not fit.
    """
    if method not in METHODS:
        raise RequestError(f"method {method!r} is unknown; use one of {', '.join(METHODS)}")
    known = {field.name for field in dataclasses.fields(METHODS[method])}
    return METHODS[method](**{name: value for name, value in options.items() if name in known})
