"""The suites of ``specjax evaluate``: public benchmarks, and the suite ``small`` of specjax."""

from ....core.checks import check_known
from . import choices, code, conversations, mathematics, reading
from .suite import Question, Suite

SUITES: dict[str, Suite] = {
    suite.name: suite for module in (conversations, code, mathematics, reading, choices) for suite in module.SUITES
}
"""All suites by name."""


def find_suite(name: str) -> Suite:
    """The suite of this name. Raises RequestError for an unknown one."""
    check_known("suite", name, SUITES)
    return SUITES[name]


__all__ = ["SUITES", "Question", "Suite", "find_suite"]
