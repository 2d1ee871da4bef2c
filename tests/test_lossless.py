"""The whole loop, every method, rule and option, against every sequence that the target could say and its probability."""

import dataclasses

import jax.numpy as jnp
import pytest
from lossless_grid import DRAFTS, METHODS, draws, halved_after_repeat, p_values

from specjax import DraftModel, Plain, decode
from specjax.evaluation.faults import FAULTS, planted
from specjax.verify import sample_and_walk

ROWS = 2_500  # of each case in each call; docs/lossless.md has the figures of 100,000
UNLIKELY = 1e-4  # a lossless loop gives a smaller p-value in one of 10,000 runs; the seeds are fixed

pytestmark = pytest.mark.slow

TREE_RULES = ("recursive_rejection", "multi_step", "k_seq", "traversal")  # on a chain the same as its own, see test_tree_rules.py
GRID = [(m, rule) for m, (_, rules) in METHODS.items() for rule in rules if not (m == "draft_model" and rule in TREE_RULES)]


@pytest.mark.parametrize(("method", "rule"), GRID)
def test_sequences_have_the_targets_law(method, rule):
    drafter, _ = METHODS[method]
    counts, rate = draws(drafter, rule, seed=1, rows=ROWS, calls=1)
    if drafter.depth:  # both sides of every branch are taken
        assert 0.1 < rate < 0.9
    values = p_values(counts)
    assert min(values.values()) > UNLIKELY, values


@pytest.mark.parametrize(("method", "rule"), [("ngram", "sample_and_walk"), ("tree", "recursive_rejection")])
def test_a_processor_sees_each_nodes_own_history(method, rule):
    counts, _ = draws(METHODS[method][0], rule, seed=1, rows=ROWS, calls=1, processors=(halved_after_repeat,))
    assert min(p_values(counts, processed=True).values()) > UNLIKELY
    assert p_values(counts)["pooled"] < UNLIKELY  # and the processor did something


def test_the_target_as_its_own_draft_is_always_right():
    """Only what ends a row keeps the target from agreeing with itself."""
    counts, rate = draws(DraftModel(DRAFTS), "block", seed=0, rows=ROWS, calls=1)
    assert rate > 0.8
    assert min(p_values(counts).values()) > UNLIKELY


SHOWN_BY = dict.fromkeys(FAULTS, "default") | {"q-before-top-p": "top_p"}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_rule_is_noticed(fault):
    drafter, rule = planted(fault, DraftModel(DRAFTS), "block")
    counts, _ = draws(drafter, rule, seed=1, rows=ROWS, calls=1)
    values = p_values(counts)
    assert values["pooled"] < 1e-10 and values[SHOWN_BY[fault]] < 1e-10, values


@dataclasses.dataclass(frozen=True)
class Forgetful(DraftModel):
    """Reports the q of twice the temperature that its tokens are drawn at."""

    def draft(self, target, draft, state, key):
        tree, pending = super().draft(target, draft, state, key)
        q = jnp.sqrt(tree.q)
        return tree.replace(q=q / jnp.maximum(q.sum(-1, keepdims=True), 1e-9)), pending


def test_a_q_that_was_not_drawn_from_is_noticed():
    counts, _ = draws(Forgetful(DRAFTS), "rejection", seed=1, rows=ROWS, calls=1)
    values = p_values(counts)
    assert values["pooled"] < 1e-20 and values["default"] < UNLIKELY


def test_one_key_for_all_places_is_noticed(monkeypatch):
    right, first = decode.round_keys, lambda cache: cache.replace(length=jnp.zeros_like(cache.length))
    monkeypatch.setattr(decode, "round_keys", lambda state, places: right(state.replace(cache=first(state.cache)), places))
    rule = lambda p, tree, key: sample_and_walk(p, tree, key)  # a function of its own, so that the loop is traced anew
    counts, _ = draws(Plain(), rule, seed=0, rows=ROWS, calls=1)
    values = p_values(counts)
    assert values["pooled"] < 1e-20 and values["default"] < UNLIKELY
