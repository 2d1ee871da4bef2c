"""Places of a text against numpy, and those of heads against the ranks that the search for trees counts."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest
from support.models import random_head, random_prompts, warped
from support.reference import logits_of

from specjax.heads import Eagle3Config, Eagle3Head, Head, MedusaConfig, MedusaHeads
from specjax.tools.doctor.distributions import compare_places, read_taps
from specjax.tools.tune.head_trees import ranks_of

(TEXT,) = random_prompts(1, 1, seed=1)
TEXT = TEXT + np.random.default_rng(4).integers(1, 61, 39).tolist()


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_places_by_their_definitions(target, draft, temperature: float):
    first = 5
    found = compare_places(target.model, draft.model, TEXT, first, temperature=temperature)
    p_logits, q_logits = (logits_of(model, TEXT)[first:-1] for model in (target.model, draft.model))
    for i, (a, b, token) in enumerate(zip(p_logits, q_logits, TEXT[first + 1 :])):
        p, q = (warped(x, temperature) for x in (a, b))
        assert found.overlap[i] == pytest.approx(np.minimum(p, q).sum(), abs=1e-4)
        assert found.accepted[i] == pytest.approx(min(1, q[token] / p[token]) if p[token] else q[token], abs=1e-3)
        assert found.rank[i] == (b > b[token]).sum()
        p, q = warped(a), 0.99 * warped(b) + 0.01 / len(b)
        assert found.divergence[i] == pytest.approx((p * np.log(p / q)).sum(), abs=1e-3)
        assert found.surprise[i] == pytest.approx(-np.log(p[token]), abs=1e-3)
        assert found.draft_surprise[i] == pytest.approx(-np.log(q[token]), abs=1e-3)
    assert len(found.overlap) == len(TEXT) - 1 - first


def test_a_draft_may_read_another_beginning(target, draft):
    """The answer stays, so the places are those of the draft's own beginning."""
    other, first = [7, 8, 9], 10
    seen = other + TEXT[first:]
    found = compare_places(target.model, draft.model, TEXT, first, temperature=1.0, seen=seen)
    q = [warped(x) for x in logits_of(draft.model, seen)[len(other) : -1]]
    p = [warped(x) for x in logits_of(target.model, TEXT)[first:-1]]
    np.testing.assert_allclose(found.overlap, [np.minimum(a, b).sum() for a, b in zip(p, q)], atol=1e-4)


@pytest.mark.parametrize("kind", ["eagle3", "medusa"])
def test_heads_rank_the_next_token_as_for_trees(target, kind: str):
    layers = target.config.replace(num_layers=1, windows=())
    config, module = {
        "eagle3": (Eagle3Config(layers, 32, 2, (0, 1, 2), 61), Eagle3Head),
        "medusa": (MedusaConfig(32, 2, 61, num_heads=2), MedusaHeads),
    }[kind]
    head = Head(random_head(module, config), config, "head")
    text = SimpleNamespace(prompt_token_ids=TEXT[:8], token_ids=TEXT[8:])
    ranks = ranks_of(target, head, [text], depth=1, ranks=61)[:, 0]
    found = compare_places(target.model, head.module, TEXT, 7)
    np.testing.assert_array_equal(found.rank, ranks)
    taps = read_taps(target.model, TEXT, config.taps)
    others = compare_places(target.model, head.module, TEXT, 7, inputs=jax.tree.map(lambda x: -x, taps))
    assert (others.rank != found.rank).any()
