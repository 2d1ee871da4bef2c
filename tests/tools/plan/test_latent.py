"""Plans of models with latent attention: the cache is small, and whole on each device."""

import math

import jax
import jax.numpy as jnp
import pytest
from support.latent import LATENT, MIXER

from specjax.drafters import Plain
from specjax.parallel import make_mesh
from specjax.tools.evaluate.products import stored_bytes
from specjax.tools.plan.abstract_arguments import abstract
from specjax.tools.plan.plan import plan
from specjax.tools.plan.program import products_of

SIZES = dict(batch=2, capacity=256, dtype=jnp.dtype("bfloat16"))
ROWS = 256 * (MIXER.rank + MIXER.rope_dim) * LATENT.num_layers * 2
"""Bytes of the cache of one row of the batch."""


@pytest.mark.parametrize("axes", [{}, dict(model=2), dict(data=2, model=2)], ids=str)
def test_devices_along_the_axis_model_hold_the_same_cache(axes):
    program = abstract(LATENT, Plain(), (), make_mesh(**axes), **SIZES)
    held = sum(map(stored_bytes, jax.tree.leaves(program.state.cache.layers)))
    assert held == ROWS * 2 // axes.get("data", 1)


def test_a_round_reads_weights_and_cache():
    """By hand: the matrices and the output matrix once, and the cache for the scores and for the values."""
    alone, split = (
        products_of(abstract(LATENT, Plain(), (), make_mesh(**axes), **SIZES)) for axes in ({}, dict(model=2))
    )
    E, V, m = LATENT.hidden_size, LATENT.vocab_size, MIXER
    compressing = E * (m.query_rank + m.rank + m.rope_dim)
    heads = m.query_rank * m.num_heads * (m.key_dim + m.rope_dim) + m.rank * m.num_heads * (m.key_dim + m.value_dim)
    heads += m.num_heads * m.value_dim * E
    mlp, cache = 3 * E * LATENT.intermediate_size, 2 * 2 * ROWS
    assert alone.bytes == 2 * (2 * (compressing + heads + mlp) + V * E) + cache
    assert LATENT.num_weights == 2 * (compressing + heads + mlp) + 2 * V * E
    # A vocabulary of 61 is not split over two devices.
    assert split.bytes == 2 * (2 * (compressing + heads / 2 + mlp / 2) + V * E) + cache
    assert math.isclose(split.operations, alone.operations / 2, rel_tol=0.2)


@pytest.mark.slow
@pytest.mark.parametrize("device, compiler, depth", [("v5e:1", "libtpu", 2), ("h100:1", "jax_plugins.xla_cuda13", 16)])
def test_a_plan_by_the_compiler(device, compiler, depth):
    """The compiled loop does not copy the cache, and moves little more than it must.

    On a GPU the sampler's search for thresholds moves nearly half as much as a layer, so the model has many layers.
    """
    pytest.importorskip(compiler, reason="needs the compiler; scripts/test.sh --all installs it")
    mixer = dict(num_heads=16, rank=512, query_rank=None, key_dim=128, rope_dim=64, value_dim=128)
    wide = LATENT.replace(
        vocab_size=4096, hidden_size=1024, intermediate_size=4096, head_dim=64, num_heads=16, num_kv_heads=16,
        max_position_embeddings=4096, num_layers=depth, mixers=(type(MIXER)(**mixer),) * depth, mlps=(),
    )  # fmt: skip
    planned = plan(wide, Plain(), device=device, batch=4, max_length=4000)
    assert planned["memory_bytes"]["cache"] == pytest.approx(4 * 4096 * 576 * 2 * depth, rel=1e-3)
    assert planned["cache_copies"] == 0
    assert planned["minimum_bytes_per_round"] <= planned["bytes_per_round"] < 1.2 * planned["minimum_bytes_per_round"]
