"""The suites of ``specjax evaluate``: public benchmarks, and the suite ``small`` of specjax."""

import difflib

from ....errors import RequestError
from . import choices, code, conversations, mathematics, reading
from .suite import Question, Suite

SUITES: dict[str, Suite] = {
    suite.name: suite for module in (conversations, code, mathematics, reading, choices) for suite in module.SUITES
}
"""All suites by name."""


def find_suite(name: str) -> Suite:
    """The suite of this name. Raises RequestError for an unknown one."""
    if name not in SUITES:
        near = difflib.get_close_matches(name, SUITES, 1)
        hint = f"did you mean {near[0]}?" if near else f"use one of {', '.join(SUITES)}"
        raise RequestError(f"suite {name!r} is unknown; {hint}")
    return SUITES[name]


__all__ = ["SUITES", "Question", "Suite", "find_suite"]
