"""The whole loop, every method, rule and option, against the exact law of the target's texts. ``support.grid`` explains it.

Which settings run. All options are in every batch, so that each setting of a method tests each
option. The first tier runs plain decoding, drafts with chosen lengths, and each kind of draft and
each shape of a tree. It tests the law of each rule in ``tests/rules``, and what each drafter reports
in ``tests/drafters``. The second tier runs every method with every rule. These targets are dense. A
target with recurrent states runs in the first tier, and one of each class in the second.
"""

import dataclasses

import jax.numpy as jnp
import pytest
from support.grid import DRAFTS, METHODS, PAIRS, TARGETS, count_draws, halve_after_repeat, p_values
from support.grid.methods import OTHER_CLASSES, Arm, Rotating, with_own

import specjax
from specjax.drafters import DraftModel, Plain, Switch
from specjax.loop import decode
from specjax.loop.drafter import TargetCopy
from specjax.rules import RULES
from specjax.rules.walks import sample_and_walk
from specjax.tools.evaluate.planted_faults import FAULTS, plant

ROWS, FEWER, FEWEST = 1_500, 500, 200  # of each case in each call; docs/results/lossless.md has the figures of 100,000
UNLIKELY = 1e-4  # a lossless loop gives a smaller p-value in one of 10,000 runs; the seeds are fixed

TREE_RULES = (
    "recursive_rejection",
    "multi_step",
    "k_seq",
    "traversal",
    "greedy_block",
)  # on a chain equal to chain rules, see test_tree_rules
GRID = [(method, rule) for method, rule in PAIRS if not (method == "draft_model" and rule in TREE_RULES)]


def properties(method: str) -> dict:
    """The properties of which the first tier has each value."""
    drafter, _ = METHODS[method]
    shape = (
        "node"
        if drafter.depth == 0
        else "tree"
        if getattr(drafter, "tree", None) or getattr(drafter, "tree_nodes", None)
        else "chain"
    )
    return {
        "drafts": "Models" if isinstance(drafter.needs, TargetCopy) else type(drafter.needs).__name__,
        "shape": shape,
        "chooses its length": bool(drafter.chooser)
        or isinstance(drafter, Switch)
        or bool(getattr(drafter, "draft_confidence", 0)),
    }


FIRST_TIER = {
    ("none", "sample_and_walk"),
    ("draft_model", "block"),
    ("token_recycling", "sample_and_walk"),
    ("block, drawn", "rejection"),
}
SETTINGS = [
    pytest.param(*pair, marks=() if pair in FIRST_TIER else pytest.mark.slow, id="-".join(pair)) for pair in GRID
]


def test_the_grid_has_every_method_and_every_lossless_rule():
    tested = tuple(type(drafter) for drafter, _ in METHODS.values())
    missing = [name for name, kind in specjax.METHODS.items() if not any(issubclass(own, kind) for own in tested)]
    rules = {rule for _, rules in METHODS.values() for rule in rules}
    missing += [name for name, rule in RULES.items() if not rule.lossy and name not in rules | {"argmax_walk"}]
    assert not missing, f"add {', '.join(missing)} to METHODS of tests/support/grid/methods.py"


def test_the_first_tier_meets_every_property():
    values = lambda settings: {value for method, _ in settings for value in properties(method).items()}
    missing = values(GRID) - values(FIRST_TIER)
    assert FIRST_TIER <= {*GRID} and not missing, f"add a setting with {missing} to FIRST_TIER"


@pytest.mark.parametrize(("method", "rule"), SETTINGS)
def test_texts_have_the_targets_law(method, rule):
    drafter, _ = METHODS[method]
    counts, rate = count_draws(drafter, rule, seed=1, rows=FEWER)
    if drafter.depth:  # drafts are both accepted and rejected
        assert 0.1 < rate < 0.9
    values = p_values(counts)
    assert min(values.values()) > UNLIKELY, values


def test_two_arms_of_method_auto_by_turns_leave_the_law():
    """Setting "auto" of the second tier has further arms."""
    counts, rate = count_draws(Rotating(arms=(Arm(1), Arm(DRAFTS, True))), "walk_if_seeded", seed=1, rows=FEWER)
    assert 0.1 < rate < 0.9
    values = p_values(counts)
    assert min(values.values()) > UNLIKELY, values


CLASS_CELLS = [
    pytest.param(kind, method, marks=() if kind == "convolution" and not i else pytest.mark.slow, id=f"{kind}-{method}")
    for kind, methods in OTHER_CLASSES.items()
    for i, method in enumerate(methods)
]
"""The first tier has the class whose programs are the smallest. ``tests/models`` has the layers of the others."""


def test_each_class_of_targets_is_met():
    assert {"dense", *OTHER_CLASSES} == set(TARGETS)


@pytest.mark.parametrize(("kind", "method"), CLASS_CELLS)
def test_texts_have_the_law_of_a_target_of_each_class(kind, method):
    drafter, rules = METHODS[method]
    counts, rate = count_draws(drafter, rules[0], seed=1, rows=FEWEST, kind=kind)
    assert 0.1 < rate < 0.9
    values = p_values(counts, kind=kind)
    assert min(values.values()) > UNLIKELY, values


DRAWING = ("draft_model", "tree", "merged", "cascade", "block, drawn")  # each forms its q in another place


@pytest.mark.slow
@pytest.mark.parametrize("method", DRAWING)
def test_options_of_the_draft_leave_the_law(method):
    drafter, rules = METHODS[method]
    counts, rate = count_draws(with_own(drafter, temperature=0.5, top_k=4, top_p=0.95), rules[0], seed=1, rows=FEWER)
    assert 0.05 < rate < 0.9
    values = p_values(counts)
    assert min(values.values()) > UNLIKELY, values


@pytest.mark.slow
@pytest.mark.parametrize(("method", "rule"), [("ngram", "sample_and_walk"), ("tree", "recursive_rejection")])
def test_a_processor_sees_each_nodes_own_history(method, rule):
    counts, _ = count_draws(METHODS[method][0], rule, seed=1, rows=ROWS, processors=(halve_after_repeat,))
    assert min(p_values(counts, processed=True).values()) > UNLIKELY
    assert p_values(counts)["pooled"] < UNLIKELY  # the processor changed the law


@pytest.mark.slow
def test_the_target_as_its_own_draft_is_nearly_always_accepted():
    """Only the end of a row cuts its drafts."""
    counts, rate = count_draws(DraftModel(DRAFTS), "block", seed=0, rows=ROWS)
    assert rate > 0.8
    assert min(p_values(counts).values()) > UNLIKELY


SHOWN_BY = dict.fromkeys(FAULTS, "default") | {"q-before-top-p": "top_p"}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_rule_is_noticed(fault):
    drafter, rule = plant(fault, DraftModel(DRAFTS), RULES["block"])
    counts, _ = count_draws(drafter, rule, seed=1, rows=ROWS)
    values = p_values(counts)
    assert values["pooled"] < 1e-10 and values[SHOWN_BY[fault]] < 1e-10, values


@dataclasses.dataclass(frozen=True)
class Forgetful(DraftModel):
    """Reports the q of twice the temperature that its tokens are drawn at."""

    def propose(self, target, draft, state, key):
        tree, pending = super().propose(target, draft, state, key)
        q = jnp.sqrt(tree.q)
        return tree.replace(q=q / jnp.maximum(q.sum(-1, keepdims=True), 1e-9)), pending


@pytest.mark.slow
def test_a_q_that_was_not_drawn_from_is_noticed():
    counts, _ = count_draws(Forgetful(DRAFTS), "rejection", seed=1, rows=ROWS)
    values = p_values(counts)
    assert values["pooled"] < 1e-20 and values["default"] < UNLIKELY


@pytest.mark.slow
def test_one_key_for_all_places_is_noticed(monkeypatch):
    right, at_zero = decode.round_keys, lambda cache: cache.replace(length=jnp.zeros_like(cache.length))
    monkeypatch.setattr(
        decode, "round_keys", lambda state, places: right(state.replace(cache=at_zero(state.cache)), places)
    )
    rule = lambda p, tree, key: sample_and_walk(p, tree, key)  # a new function, so that the loop is traced anew
    counts, _ = count_draws(Plain(), rule, seed=0, rows=ROWS)
    values = p_values(counts)
    assert values["pooled"] < 1e-20 and values["default"] < UNLIKELY
