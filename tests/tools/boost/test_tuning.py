"""The choices that a boost times."""

import pytest

from specjax import Generator, load
from specjax.tools.boost.candidates import CANDIDATES
from specjax.tools.boost.contest import MOST_DRAFTED, Measured
from specjax.tools.boost.tuning import _SUREST, _TESTED, _shapes, best_first, measure_rates

DRAFTS = {"draft": "tiny-python-draft"} | {name: f"tiny-python-{name}" for name in ("eagle3", "mtp", "medusa", "block")}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name == "quantized_self" else ()) for name in CANDIDATES],
)
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


def test_rates_are_those_of_teacher_forcing(target, draft):
    """Greedy chains are followed token by token. A draft that is the target itself is always right when greedy."""
    prompt, tokens = [5, 6, 7, 8, 9], 24
    text = Generator(target, "none")(prompt, max_new_tokens=tokens, ignore_eos=True).token_ids
    writer = Generator(draft, "none", capacity=len(prompt) + 2 * tokens)
    accepted = tested = done = 0
    while done < tokens - 1:
        done += 1  # the prefill's token, and then each round's own
        drafted = writer(prompt + text[:done], max_new_tokens=_TESTED, ignore_eos=True).token_ids
        for ours, theirs in zip(drafted, text[done:]):
            tested += 1
            if ours != theirs:
                break
            accepted += 1
            done += 1
    rates = measure_rates(target, "draft_model", draft, [prompt], tokens)
    assert rates[0] == pytest.approx(accepted / tested, abs=0.1) and 0 < rates[1] < 1
    assert measure_rates(target, "draft_model", target, [prompt], tokens)[0] == _SUREST
