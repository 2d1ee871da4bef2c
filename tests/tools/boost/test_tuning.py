"""The choices that a boost times."""

import pytest

from specjax import Generator, load
from specjax.tools.boost.candidates import CANDIDATES
from specjax.tools.boost.contest import MOST_DRAFTED, Measured
from specjax.tools.boost.tuning import _shapes, best_first

DRAFTS = {"draft": "tiny-python-draft"} | {name: f"tiny-python-{name}" for name in ("eagle3", "mtp", "medusa", "block")}


@pytest.mark.parametrize("name", CANDIDATES)
def test_every_choice_is_a_method_with_its_options(name):
    target, different = load("tiny-python", dtype="float32"), []
    for length in (0, MOST_DRAFTED):
        choices = _shapes(name, Measured(1000, [0.5] * MOST_DRAFTED, 1.2, length))
        assert choices
        different += [choice for choice in choices if choice not in different]
    for choice in different:
        Generator(target, choice["method"], DRAFTS.get(name), **choice["options"])


@pytest.mark.parametrize(("auto", "first"), [(1.45, "auto"), (1.42, "eagle3"), (1.60, "auto")])
def test_auto_is_preferred_where_it_is_nearly_the_fastest(auto, first):
    speeds = {"ngram": 1.2, "eagle3": 1.5, "auto": auto}
    ordered = best_first([{"method": method, "speedup": speed} for method, speed in speeds.items()])
    assert ordered[0]["method"] == first and ordered[-1]["method"] == "ngram"
