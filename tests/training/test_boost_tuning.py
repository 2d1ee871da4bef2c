"""Boosted drafts: each learns from the tokens that the earlier ones miss; an interrupted run goes on."""

import jax
import numpy as np
import pytest
from flax import nnx
from support.training import read_log

import specjax
from specjax import RequestError
from specjax.training import run
from specjax.training.boost_tuning import boost
from specjax.training.kinds.draft import DraftLoss
from specjax.training.recipe import make_recipe
from specjax.training.run import train

BOOST = dict(
    kind="boost", steps=2, batch=2, length=12, every=1, prompts=0,
    head=dict(drafts=2, num_layers=1, hidden_size=16), optimizer=dict(name="adamw", warmup=1),
)  # fmt: skip


def parameters(draft) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(nnx.state(draft.model))]


def test_a_recipe_of_boost_is_not_trained_as_one_draft(small, text, tmp_path):
    with pytest.raises(RequestError, match="trains several drafts; call"):
        train(make_recipe(BOOST, "test"), small, [text], tmp_path)
    with pytest.raises(RequestError, match=r"\[head\] drafts 1 is too small; 2 is the least"):
        make_recipe(BOOST | dict(head=dict(drafts=1)), "test")


@pytest.mark.slow
def test_each_draft_is_trained_with_the_earlier_ones_and_saved(small, text, tmp_path, monkeypatch):
    seen, call = [], DraftLoss.__call__

    def watch(self, draft, window, weight, key, target, earlier=()):
        seen.append(len(earlier))
        return call(self, draft, window, weight, key, target, earlier)

    monkeypatch.setattr(DraftLoss, "__call__", watch)
    recipe = make_recipe(BOOST, "test")
    drafts = boost(recipe, small, [text], tmp_path)
    assert set(seen) == {0, 1} and sorted(seen) == seen
    for m, draft in enumerate(drafts):
        assert [record["step"] for record in read_log(tmp_path / str(m + 1))] == [1, 2]
        for a, b in zip(parameters(draft), parameters(specjax.load(tmp_path / str(m + 1)))):
            np.testing.assert_array_equal(a, b)
    generator = specjax.Generator(small, "merged", [str(tmp_path / "1"), str(tmp_path / "2")])
    plain = specjax.Generator(small, "none")([5, 6, 7], max_new_tokens=12, ignore_eos=True)
    assert generator([5, 6, 7], max_new_tokens=12, ignore_eos=True).token_ids == plain.token_ids

    # Interrupted before the last checkpoint of the second draft, and again.
    other, save = tmp_path / "other", run.save_drafter
    stopped = iter([0])

    def stop_once(recipe, module, *rest):
        if recipe.seed == 1 and next(stopped, None) is not None:
            raise KeyboardInterrupt
        return save(recipe, module, *rest)

    monkeypatch.setattr(run, "save_drafter", stop_once)
    with pytest.raises(KeyboardInterrupt):
        boost(recipe, small, [text], other)
    for a, b in zip(drafts, boost(recipe, small, [text], other)):
        assert all((x == y).all() for x, y in zip(parameters(a), parameters(b)))
    with pytest.raises(RequestError, match="holds a run with earlier 1, not None"):
        train(
            make_recipe(BOOST | dict(kind="draft", seed=1, head=dict(num_layers=1, hidden_size=16)), "t"),
            small,
            [text],
            other / "2",
        )
