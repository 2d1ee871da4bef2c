"""Models with experts on meshes of devices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.mixtures import MIXTURES, make_mixture
from support.models import on_mesh

from specjax import make_mesh
from specjax.parallel import use_mesh


def score(model, tokens, positions, mask):
    return model.logits(model(tokens, positions, mask).hidden)


AXES = dict(model=2), dict(data=2, model=2), dict(data=2, nodes=2)


@pytest.mark.slow
@pytest.mark.parametrize("axes", AXES)
@pytest.mark.parametrize("family", MIXTURES)
def test_devices_of_a_mesh_compute_the_same(family, axes):
    """The units of each expert are split over ``model``, and each device reads its part of all chosen experts."""
    model, B, N = make_mixture(family), 2, 6
    tokens = jnp.asarray(np.random.default_rng(3).integers(1, model.config.vocab_size, (B, N)))
    given = tokens, jnp.broadcast_to(jnp.arange(N), (B, N)), jnp.tril(jnp.ones((N, N), bool))
    alone, mesh = jax.jit(score)(model, *given), make_mesh(**axes)
    split = on_mesh(model, mesh)
    for layer in split.layers:
        if hasattr(layer.mlp, "router"):
            F = layer.mlp.config.width
            assert layer.mlp.gates[...].sharding.shard_shape(layer.mlp.gates.shape)[1] == F // mesh.shape["model"]
    with use_mesh(mesh):
        together = jax.jit(score)(split, *given)
    np.testing.assert_allclose(together, alone, rtol=1e-4, atol=1e-4)
