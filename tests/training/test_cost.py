"""No training step makes an array of all tokens of a window by all, as a mask or scores would be: read from the compiled program, which is not run."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from support.models import TINY, language_model, tiny_model

from specjax.models import attention
from specjax.tools.plan import hlo
from specjax.training.recipe import make_recipe
from specjax.training.run import make_loss

LENGTH, REACH = 512, 16
"""Wider than anything in the model. Losses leave out up to so many rows at the end."""

TARGET = language_model(tiny_model(config=TINY, num_layers=1, num_heads=1, num_kv_heads=1))
HEADS = {
    "medusa": dict(num_heads=2),
    "hydra": dict(num_heads=2, prefix=True),
    "eagle": {},
    "eagle3": dict(draft_vocab_size=40, taps=[0, 1]),
    "mtp": {},
    "block": dict(num_layers=1, block_size=8, taps=[0, 1]),
    "draft": dict(num_layers=1),
}
LOSSES = {
    "eagle3": dict(steps=3),
    "mtp": dict(steps=2),
    "block": dict(anchors=LENGTH // 8),
}  # as many places in blocks as tokens


def compiled_gradient(kind: str) -> str:
    """The optimised program of the loss and its gradient on one window."""
    recipe = make_recipe(dict(kind=kind, batch=1, length=LENGTH, head=HEADS[kind], loss=LOSSES.get(kind, {})), "test")
    window = np.arange(LENGTH + 1, dtype=np.int32)[None] % 61
    module = recipe.head.make(TARGET, window[0], jax.random.key(0))
    graph, params, rest = nnx.split(module, nnx.Param, ...)
    loss = lambda params, target, window: make_loss(recipe)(
        nnx.merge(graph, params, rest), (window, jnp.ones((1, LENGTH + 2), bool), jnp.uint32(0)), target
    )
    with jax.numpy_dtype_promotion("standard"):  # optax mixes integers and floats
        return jax.jit(jax.value_and_grad(loss)).lower(params, TARGET.model, window).compile().as_text()


@pytest.mark.slow
@pytest.mark.parametrize("kind", HEADS)
def test_no_array_is_of_tokens_by_tokens(kind):
    text = compiled_gradient(kind)
    assert hlo.squares(text, LENGTH - REACH) == []
    assert LENGTH * 61 <= hlo.largest(text).size < LENGTH**2  # nor one that lies flat; the logits are there


def dense(nodes: int) -> jax.Array:
    return jnp.tril(jnp.ones((nodes, nodes), bool))


@pytest.mark.parametrize(
    ("owner", "name", "fault"), [(attention.Seen, "causal", staticmethod(dense)), (attention, "PAST_CHUNK", 2 * LENGTH)]
)
def test_a_mask_and_scores_are_noticed(monkeypatch, owner, name, fault):
    """A triangle in the place of ``Seen``, and one chunk in the place of many."""
    monkeypatch.setattr(owner, name, fault)
    assert hlo.squares(compiled_gradient("eagle"), LENGTH - REACH)
