"""Mixtures of experts against a loop over nodes and experts in float64."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from specjax import RequestError
from specjax.models.feed_forwards import Experts, ExpertsConfig, GatedMlpConfig, expert_products
from specjax.models.feed_forwards.experts import route
from specjax.models.kinds import LayerConfig
from specjax.models.layers import Norm
from specjax.models.mixers import AttentionConfig
from specjax.tools.plan import hlo

WIDTH = 16
KINDS = {
    "mixtral": ExpertsConfig(6, 2, 12),
    "qwen2_moe": ExpertsConfig(5, 2, 12, normed=False, shared=GatedMlpConfig(8)),
    "gpt_oss": ExpertsConfig(7, 3, 12, bias=True, clamp=(1.702, 0.5)),
    "all chosen": ExpertsConfig(3, 3, 12),
}


FORMS = {
    "tiles": expert_products.in_tiles,
    "all tiles": partial(expert_products.in_tiles, ends=False),
    "dense": expert_products.dense,
}


def make(config: ExpertsConfig, seed: int = 0) -> Experts:
    """Experts with random parameters, biases included, of the size of trained ones."""
    layer = LayerConfig(WIDTH, 1, AttentionConfig(2, 1, 8), config, Norm())
    module = Experts(layer, jax.random.split(jax.random.key(seed)), jnp.float32)
    rng = np.random.default_rng(seed)
    for name in ("router", "gates", "ups", "downs", "shared_gate"):
        for param in (getattr(module, name), getattr(module, f"{name}_bias", None)):
            if param is not None:
                param[...] = jnp.asarray(rng.normal(0, param.shape[-1] ** -0.5, param.shape), jnp.float32)
    if module.shared is not None:
        module.shared.gate_up[...] *= 10
        module.shared.down[...] *= 10
    return module


def nodes(*shape: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 1, (*shape, WIDTH)).astype(np.float32)


def silu(x):
    return x / (1 + np.exp(-x))


def oracle(module: Experts, x: np.ndarray) -> np.ndarray:
    """The output of one node x [E], by the definition."""
    config, of = module.config, lambda param: 0.0 if param is None else np.asarray(param[...], np.float64)
    logits = of(module.router) @ x + of(module.router_bias)
    chosen = np.argsort(-logits, kind="stable")[: config.chosen]
    weights = np.exp(logits - logits.max())
    weights /= weights[chosen].sum() if config.normed else weights.sum()
    y = np.zeros(WIDTH)
    for i in chosen:
        bias = lambda param: 0.0 if param is None else of(param)[i]
        gate = of(module.gates)[i] @ x + bias(module.gates_bias)
        up = of(module.ups)[i] @ x + bias(module.ups_bias)
        if config.clamp is None:
            units = silu(gate) * up
        else:
            alpha, limit = config.clamp
            gate, up = np.minimum(gate, limit), np.clip(up, -limit, limit)
            units = gate / (1 + np.exp(-alpha * gate)) * (up + 1)
        y += weights[i] * (of(module.downs)[i] @ units + bias(module.downs_bias))
    if module.shared is not None:
        parts = of(module.shared.gate_up).reshape(module.shared.config.parts, 2, -1, WIDTH)
        gate, up = (parts[:, j].reshape(-1, WIDTH) @ x for j in (0, 1))
        y += (of(module.shared.down) @ (silu(gate) * up)) / (1 + np.exp(-of(module.shared_gate)[0] @ x))
    return y


@pytest.mark.parametrize("config", KINDS.values(), ids=KINDS.keys())
@pytest.mark.parametrize("shape", [(2, 3), *(pytest.param(s, marks=pytest.mark.slow) for s in ((1, 1), (1, 70)))])
def test_every_node_gets_the_sum_of_its_experts(config, shape):
    module, x = make(config), nodes(*shape)
    wanted = np.array([[oracle(module, node) for node in row] for row in x])
    np.testing.assert_allclose(jax.jit(module)(x), wanted, rtol=1e-4, atol=1e-5 * np.abs(wanted).max())


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("chosen", ["all the same", "one each", "random"])
def test_no_node_is_dropped(form, chosen):
    """All forms, also where all nodes choose the same experts."""
    module, x = make(KINDS["gpt_oss"]), nodes(9)
    X, k, of = module.config.count, module.config.chosen, lambda param: np.asarray(param[...], np.float64)
    picks = {
        "all the same": np.tile(np.arange(k), (9, 1)),
        "one each": (np.arange(9)[:, None] + np.arange(k)) % X,
        "random": np.stack([np.random.default_rng(i).permutation(X)[:k] for i in range(9)]),
    }[chosen]
    share = np.random.default_rng(0).uniform(0, 1, picks.shape)
    alpha, limit = module.config.clamp
    wanted = np.zeros((9, WIDTH))
    for i, j in np.ndindex(picks.shape):
        e = picks[i, j]
        gate = np.minimum(of(module.gates)[e] @ x[i] + of(module.gates_bias)[e], limit)
        up = np.clip(of(module.ups)[e] @ x[i] + of(module.ups_bias)[e], -limit, limit)
        wanted[i] += share[i, j] * of(module.downs)[e] @ (gate / (1 + np.exp(-alpha * gate)) * (up + 1))
    matrices = (module.gates, module.ups, module.downs, module.gates_bias, module.ups_bias)
    weights = expert_products.Weights(*(param[...] for param in matrices))
    given = jnp.asarray(x), jnp.asarray(picks), jnp.asarray(share, jnp.float32), weights
    found = jax.jit(form, static_argnums=0)(module.config.clamp, *given)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_a_node_gets_the_same_alone_and_among_others():
    """In any batch and at any place the router chooses the same experts, and the sum differs by rounding only."""
    module, x = make(KINDS["mixtral"]), nodes(3, 7)
    run = jax.jit(module)
    together = np.asarray(run(x))
    alone = np.stack([[run(x[b : b + 1, i : i + 1])[0, 0] for i in range(7)] for b in range(3)])
    mixed = np.asarray(run(x.reshape(1, 21, WIDTH)[:, ::-1]))[:, ::-1].reshape(together.shape)
    for other in (alone, mixed):
        np.testing.assert_allclose(other, together, rtol=1e-5, atol=1e-6 * np.abs(together).max())


def test_the_router_multiplies_in_full_precision():
    """Devices with products of fewer bits could choose other experts for a node in a tree than for the node alone."""
    module = make(KINDS["mixtral"])
    choose = lambda x, router: route(x, router, None, module.config)
    traced = jax.make_jaxpr(choose)(jnp.zeros((1, 2, WIDTH), jnp.bfloat16), module.router[...].astype(jnp.bfloat16))
    products = [one for one in traced.jaxpr.eqns if one.primitive.name == "dot_general"]
    highest = jax.lax.Precision.HIGHEST
    assert [one.params["precision"] for one in products] == [(highest, highest)]
    assert {operand.aval.dtype for operand in products[0].invars} == {jnp.dtype("float32")}


@pytest.mark.parametrize("nodes_, k, X, size", [(1, 2, 4, 1), (5, 3, 7, 2), (5, 3, 7, 8), (33, 2, 3, 4)])
def test_each_choice_has_a_place_in_a_tile_of_its_expert(nodes_, k, X, size):
    chosen = np.stack([np.random.default_rng(i).permutation(X)[:k] for i in range(nodes_)])
    tiles = jax.jit(expert_products.make_tiles, static_argnums=(1, 2))(jnp.asarray(chosen), X, size)
    places = np.asarray(tiles.place)
    assert len(np.unique(places)) == nodes_ * k
    assert places.max() < int(tiles.count) * size <= len(tiles.nodes)
    np.testing.assert_array_equal(np.asarray(tiles.nodes)[places], np.tile(np.arange(nodes_)[:, None], k))
    np.testing.assert_array_equal(np.asarray(tiles.expert)[places // size], chosen)
    used = np.unique(chosen, return_counts=True)[1]
    assert int(tiles.count) == sum(-(-used // size))


def test_a_cpu_reads_bfloat16_experts_as_they_lie():
    """The compiled loop has no copy and no conversion of an expert, and the kernel computes what XLA computes."""
    pytest.importorskip("llvmlite", reason="the kernel for CPUs needs it")
    rng = np.random.default_rng(0)
    draw = lambda *shape: jnp.asarray(rng.normal(0, 0.2, shape), jnp.bfloat16)
    X, F, E, n = 6, 32, 64, 5
    weights = expert_products.Weights(draw(X, F, E), draw(X, F, E), draw(X, E, F))
    chosen = np.stack([rng.permutation(X)[:2] for _ in range(n)])
    given = (
        jnp.asarray(rng.normal(size=(n, E)), jnp.float32),
        jnp.asarray(chosen),
        jnp.ones((n, 2), jnp.float32),
        weights,
    )
    compiled = jax.jit(partial(expert_products.in_tiles, None)).lower(*given).compile()
    moves = "copy", "convert", "transpose", "dynamic-slice"
    assert hlo.moved(compiled.as_text(), {F * E, X * F * E}, moves, everywhere=True) == []
    dense = jax.jit(partial(expert_products.dense, None))(*given)
    np.testing.assert_allclose(compiled(*given), dense, rtol=2e-2, atol=2e-2 * np.abs(dense).max())


def test_gradients_are_those_of_finite_differences():
    module, x = make(KINDS["qwen2_moe"]), jnp.asarray(nodes(1, 4))
    check_grads(jax.jit(lambda x: jnp.sin(module(x)).sum()), (x,), order=1, modes=["rev"], atol=2e-2, rtol=2e-2)


def test_expected_experts_are_those_of_random_choices():
    config, rng = ExpertsConfig(12, 3, 8), np.random.default_rng(0)
    for count in (1, 2, 5, 20):
        found = [len({e for _ in range(count) for e in rng.permutation(12)[:3]}) for _ in range(2000)]
        assert config.expected_experts(count) == pytest.approx(np.mean(found), rel=0.02)
    assert config.expected_experts(1) == pytest.approx(3)
    assert config.expected_experts(10**6) == pytest.approx(12)


def test_a_mesh_that_does_not_divide_the_experts_is_refused():
    with pytest.raises(
        RequestError, match="model=5 cannot hold the model's 6 experts.* 12 channels.*use model=1, 2, 3"
    ):
        KINDS["mixtral"].split_over(5)
    with pytest.raises(RequestError, match="model=3 does not divide the model's 8 MLP channels"):
        KINDS["qwen2_moe"].split_over(3)
