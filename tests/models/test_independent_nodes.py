"""The bits of a node are the same alone, in a chain, in a tree and in a batch, so greedy texts of all methods are equal.

It holds where kernels compute products, norms and attention.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.models import tiny_model

from specjax.core import cache as kv
from specjax.models.layers import Norm, normalize, rms_norm
from specjax.models.rounding import quantise_module

CONFIG = dict(hidden_size=80, intermediate_size=160, head_dim=16, num_layers=2, dtype="bfloat16")
PARENT = (0, 0, 0, 1, 1, 2, 3, 6, 6, 5, 7, 8)
PATH = [0, 1, 3, 6, 7, 10]
LENGTHS = 14, 37, 3


@partial(jax.jit, static_argnames="parent")
def score(model, tokens, cache, parent: tuple):
    """Logits [B, N, V] of a tree, and its rows."""
    mask, depth = np.eye(len(parent), dtype=bool), np.zeros(len(parent), int)
    for node in range(1, len(parent)):
        mask[node] |= mask[parent[node]]
        depth[node] = depth[parent[node]] + 1
    out = model(tokens, cache.length[:, None] + depth, jnp.asarray(mask), cache)
    return model.logits(out.hidden), out.rows


commit = jax.jit(lambda cache, rows: kv.commit(cache, rows, None, cache.length + 1, valid=jnp.ones(1, bool)))


def filled(model, capacity: int = 64) -> kv.KVCache:
    """A cache of random keys and values, the same for a row in any batch."""
    cache = kv.empty(model.config, len(LENGTHS), capacity, jnp.float32)
    leaves, structure = jax.tree.flatten(cache.layers)
    random = np.random.default_rng(0)
    layers = jax.tree.unflatten(structure, [jnp.float32(random.normal(size=leaf.shape)) for leaf in leaves])
    return cache.replace(layers=layers, length=jnp.int32(LENGTHS))


@pytest.mark.parametrize(
    "form", ["int4", *(pytest.param(name, marks=pytest.mark.slow) for name in ("bfloat16", "int8", "int4:exact"))]
)
def test_a_node_has_the_same_logits_alone_in_a_chain_in_a_tree_and_in_a_batch(form):
    model = tiny_model(**CONFIG)
    model = model if form == "bfloat16" else quantise_module(model, form)
    whole = filled(model)
    tokens = jnp.asarray(np.random.default_rng(1).integers(0, 61, (3, len(PARENT))), jnp.int32)
    tree, _ = score(model, tokens, whole, PARENT)
    for b in range(3):
        row = jax.tree.map(lambda leaf: leaf[b : b + 1], whole)
        np.testing.assert_array_equal(score(model, tokens[b : b + 1], row, PARENT)[0], tree[b : b + 1])
        chain, _ = score(model, tokens[b : b + 1, np.array(PATH)], row, (0, *range(len(PATH) - 1)))
        np.testing.assert_array_equal(chain[0], tree[b, np.array(PATH)])
        for node in PATH:
            logits, rows = score(model, tokens[b : b + 1, node : node + 1], row, (0,))
            np.testing.assert_array_equal(logits[0, 0], tree[b, node])
            row = commit(row, rows)


@pytest.mark.parametrize("kind", ["rms", "layer", "centred"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_norms_by_their_definition_and_for_any_number_of_rows(kind, dtype):
    random = np.random.default_rng(0)
    x, weight = jnp.float32(random.normal(1, 3, (33, 5, 48))), jnp.asarray(random.normal(size=48), dtype)
    bias = weight[::-1] if kind == "layer" else None
    norm = jax.jit(lambda x: normalize(x, Norm(kind, 1e-2, offset=1.0 if kind == "rms" else 0.0), weight, bias))
    wide = np.float64(x) - (0 if kind == "rms" else np.float64(x).mean(-1, keepdims=True))
    wanted = wide / np.sqrt(np.square(wide).mean(-1, keepdims=True) + 1e-2) * (np.float64(weight) + (kind == "rms"))
    wanted += 0 if bias is None else np.float64(bias)
    whole = norm(x)
    np.testing.assert_allclose(whole, wanted, rtol=2e-6, atol=2e-6)
    for few in (x[:1, :1], x[:1], x[:6, :3]):
        np.testing.assert_array_equal(norm(few), whole[: few.shape[0], : few.shape[1]])
    assert "specjax_row_norms" in norm.lower(x).compile().as_text()


def test_groups_have_weights_of_their_own():
    random = np.random.default_rng(0)
    x, weight = jnp.float32(random.normal(size=(5, 3, 4, 32))), jnp.float32(random.normal(size=(4, 32)))
    plain = np.float64(x) / np.sqrt(np.mean(np.float64(x) ** 2, -1, keepdims=True) + 1e-2) * np.float64(weight)
    np.testing.assert_allclose(rms_norm(x, weight, 1e-2), plain, rtol=2e-6, atol=1e-6)


def test_norms_have_the_derivatives_of_their_definition():
    x, weight = jnp.float32(np.random.default_rng(0).normal(size=(3, 32))), jnp.linspace(1.0, 2.0, 32)

    def plain(x, weight):
        return x / jnp.sqrt((x * x).mean(-1, keepdims=True) + 1e-2) * weight

    total = lambda norm: jax.jit(jax.grad(lambda *given: jnp.sin(norm(*given)).sum(), (0, 1)))(x, weight)
    for found, wanted in zip(total(lambda x, weight: normalize(x, Norm("rms", 1e-2), weight)), total(plain)):
        np.testing.assert_allclose(found, wanted, atol=1e-6)
