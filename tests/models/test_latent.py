"""Latent attention against attention over keys and values that are not compressed, and on meshes."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.decoding import decode_all
from support.latent import LATENT, MIXER, PUBLISHED
from support.models import on_mesh, random_in_numpy, random_prompts, tiny_model
from support.numpy_layer import linear, rms, rotate
from support.reference import is_greedy

from specjax import RequestError, make_mesh
from specjax.checkpoints.config import from_hf
from specjax.core import cache
from specjax.drafters import EarlyExit, LayerSkip, PartialCache
from specjax.models.layer import Nodes
from specjax.models.mixers import LatentAttention
from specjax.models.rope import Rope
from specjax.parallel import use_mesh

KINDS = {"compressed queries": {}, "queries from the stream": dict(query_rank=None, bias=False)}
START, EARLIER = 7, 3
TREE = np.array([[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 1, 1]], bool)
"""The nodes of a tree that each node sees; its root follows three uncommitted rows, of which node 0 to 2 see two."""
SEEN = np.concatenate([np.array([[1, 1, 0]] * 3 + [[1, 1, 1]], bool), TREE], 1)


def layer_of(**changes):
    """Random latent attention with plain rotary positions."""
    config = dataclasses.replace(LATENT.layer(0), mixer=dataclasses.replace(MIXER, rope=Rope(100.0), **changes))
    with random_in_numpy():
        module = LatentAttention(config, np.zeros((2, 2), np.uint32), jnp.float32)  # its parameters follow
    rng = np.random.default_rng(1)
    for name in ("down", "query", "up_key", "up_value", "out", "query_norm", "row_norm", "down_bias", "out_bias"):
        parameter = getattr(module, name)
        if parameter is not None:
            centre = 1.0 if name.endswith("norm") else 0.0
            parameter[...] = jax.device_put(np.float32(rng.normal(centre, 0.4, parameter.shape)))
    return module


def not_absorbed(module: LatentAttention, x: np.ndarray, positions, seen) -> np.ndarray:
    """The output [n, E] for the stream x [n, E], by equations 37 to 47 of 2405.04434, token by token and head by head."""
    c, rows = module.config, []
    down = linear(x, module.down, module.down_bias)
    first = c.query_rank or 0
    read = rms(down[:, :first], module.query_norm, 1e-6) if first else x
    latent = rms(down[:, first : first + c.rank], module.row_norm, 1e-6)
    queries = linear(read, module.query).reshape(len(x), c.num_heads, -1)
    keys = linear(latent, module.up_key).reshape(len(x), c.num_heads, c.key_dim)
    values = linear(latent, module.up_value).reshape(len(x), c.num_heads, c.value_dim)
    turned = [rotate(down[i, first + c.rank :], positions[i], c.rope.theta) for i in range(len(x))]
    for i in range(len(x)):
        heads, others = [], np.flatnonzero(seen[i])
        for h in range(c.num_heads):
            q = np.concatenate(
                [queries[i, h, : c.key_dim], rotate(queries[i, h, c.key_dim :], positions[i], c.rope.theta)]
            )
            scores = np.array([q @ np.concatenate([keys[j, h], turned[j]]) for j in others]) / math.sqrt(q.size)
            weights = np.exp(scores - scores.max())
            heads.append(weights / weights.sum() @ values[others, h])
        rows.append(np.concatenate(heads))
    return linear(np.array(rows), module.out, module.out_bias)


def whole_mask() -> np.ndarray:
    """The tokens that each token sees: the committed ones, the rows of an earlier call, and the tree."""
    n = START + EARLIER
    seen = np.tri(n + len(TREE), dtype=bool)
    seen[n:, START:] = SEEN
    return seen


@pytest.mark.parametrize("kind", KINDS)
def test_absorbed_attention_equals_attention_over_keys_and_values(kind):
    """A tree behind uncommitted rows behind a cache."""
    module, rng = layer_of(**KINDS[kind]), np.random.default_rng(2)
    x = rng.normal(size=(START + EARLIER + len(TREE), LATENT.hidden_size))
    positions = np.r_[np.arange(START + EARLIER), START + EARLIER + TREE.sum(1) - 1]
    expected = not_absorbed(module, x, positions, whole_mask())

    @jax.jit
    def compiled(module, x, positions, mask, length, past, rows):
        return module(x, Nodes(positions, mask, jnp.dtype("float32"), length), past, rows)

    call = lambda at, past, rows, mask, length: compiled(
        module, np.float32(x[None, at]), np.int32(positions[None, at]), mask, np.int32([length]), past, rows
    )
    chain = lambda n: np.tri(n, dtype=bool)
    prompt, rows = call(slice(0, START), None, None, chain(START), 0)
    past = (np.pad(rows[0], ((0, 0), (0, 0), (0, 12), (0, 0)), constant_values=9.0),)  # void positions
    earlier, rows = call(slice(START, START + EARLIER), past, None, chain(EARLIER), START)
    nodes, rows = call(slice(START + EARLIER, None), past, rows, SEEN, START)
    assert rows[0].shape == (1, 1, EARLIER + len(TREE), MIXER.rank + MIXER.rope_dim)
    found = np.concatenate([prompt[0], earlier[0], nodes[0]])
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_yarn_scales_the_scores_of_whole_heads():
    """Section 3.4 of YaRN (2309.00071) with weight 1.5, on queries and on keys."""
    temperature = 0.1 * 1.5 * math.log(4.0) + 1
    assert MIXER.scores.scale == pytest.approx((6 + 4) ** -0.5 * temperature**2)
    assert dataclasses.replace(MIXER, rope=Rope()).scores.scale == pytest.approx((6 + 4) ** -0.5)


def test_the_cache_of_a_token_has_the_published_size():
    """70.272 KB for DeepSeek-V3 in bfloat16 (2505.09343, table 1): 576 numbers in each of 61 layers."""
    config = from_hf(PUBLISHED["DeepSeek-V3"])
    held = jax.eval_shape(lambda: cache.empty(config, 1, 1000, jnp.bfloat16)).layers
    assert sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(held)) == 1000 * 70272
    assert config.token_rows == 61 * 576


@pytest.mark.parametrize("name, billions", [("DeepSeek-V3", 671), ("Kimi-K2", 1026), ("DeepSeek-V2-Lite", 15.7)])
def test_a_published_model_has_the_published_number_of_weights(name, billions):
    """The numbers of the reports 2412.19437, 2507.20534 and 2405.04434."""
    assert from_hf(PUBLISHED[name]).num_weights / 1e9 == pytest.approx(billions, rel=3e-3)


def score(model, tokens, positions, mask, held):
    out = model(tokens, positions, mask, held)
    return model.logits(out.hidden), out.rows


@pytest.mark.parametrize(
    "axes", [dict(model=2), pytest.param(dict(data=2, model=4), marks=pytest.mark.slow), dict(data=2, nodes=2)], ids=str
)
def test_devices_of_a_mesh_compute_the_same(axes):
    """Each device has its own heads and the whole cache."""
    B, N, model, mesh = 2, 6, tiny_model(config=LATENT), make_mesh(**axes)
    rng = np.random.default_rng(3)
    held = jax.tree.map(
        lambda leaf: jnp.asarray(rng.normal(size=leaf.shape), leaf.dtype),
        cache.empty(LATENT, B, 16, jnp.float32).layers,
    )
    held = cache.KVCache(held, jnp.array([9, 4]))
    tokens = jnp.asarray(rng.integers(1, LATENT.vocab_size, (B, N)))
    given = tokens, held.length[:, None] + jnp.arange(N), jnp.tril(jnp.ones((N, N), bool)), held
    alone, alone_rows = jax.jit(score)(model, *given)
    split = on_mesh(model, mesh)
    heads = split.layers[0].mixer.up_key[...]
    assert heads.sharding.shard_shape(heads.shape)[0] == heads.shape[0] // mesh.shape["model"]
    with use_mesh(mesh):
        program = jax.jit(score).lower(split, *given).compile()
        together, rows = program(split, *given)
    np.testing.assert_allclose(together, alone, rtol=1e-4, atol=1e-4)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), rows, alone_rows)
    if mesh.shape["model"] > 1 and mesh.shape["data"] == 1:  # a sum after each sub-layer, and the parts of the logits
        assert program.as_text().count(" all-gather(") <= 2


def test_a_mesh_that_does_not_divide_the_heads_is_refused():
    with pytest.raises(RequestError, match="model=3 does not divide the model's 4 attention heads; use model=1, 2, 4"):
        LATENT.split_over(3)


def test_chunks_of_the_cache_are_refused_by_name():
    """Their mean keys need the keys of each head."""
    PartialCache(draft_window=8).check(LATENT)
    with pytest.raises(RequestError, match="latent attention.*cache_chunks"):
        PartialCache(draft_window=8, cache_chunks=2).check(LATENT)


@pytest.mark.slow
@pytest.mark.parametrize(
    "drafter",
    [EarlyExit(1, 3, 0.0), LayerSkip((1,), (), 3, 0.0), PartialCache(3, attention_sinks=2, draft_window=6)],
    ids=lambda drafter: type(drafter).__name__,
)
def test_methods_that_read_the_targets_cache_emit_its_greedy_text(drafter):
    model, prompts = tiny_model(config=LATENT), random_prompts(3, 20, seed=1)
    state, _ = decode_all(model, (), drafter, prompts)
    assert all(is_greedy(model, state, prompts))
    assert state.counters.accepted_at.sum() > 0


@pytest.mark.parametrize("nodes", [pytest.param(1, marks=pytest.mark.slow), 5])
def test_bfloat16_weights_give_nearly_the_same_logits(nodes):
    """XLA:CPU lacks some 16-bit products of several nodes with the matrices of heads."""
    exact, rounded = tiny_model(config=LATENT), tiny_model(config=LATENT, dtype="bfloat16")
    tokens, positions = jnp.arange(3, 3 + nodes)[None], jnp.arange(nodes)[None]
    call = jax.jit(lambda model: model.logits(model(tokens, positions, jnp.tri(nodes, dtype=bool)).hidden))
    expected, found = np.asarray(call(exact)), np.asarray(call(rounded))
    assert np.abs(found - expected).max() < 0.1 * np.abs(expected).max()
