"""Models with experts: a tree's nodes as chains, decoding with drafts as plain decoding, and meshes of devices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.decoding import decode_all
from support.mixtures import MIXTURES, make_mixture
from support.models import on_mesh, random_prompts

from specjax import make_mesh
from specjax.drafters import DraftModel, DynamicTree, Ngram, Plain
from specjax.parallel import use_mesh

PARENTS = [0, 0, 0, 1, 1, 2, 5]
"""A tree of seven nodes, by the parents of its nodes."""


@pytest.fixture(scope="module", params=MIXTURES)
def model(request):
    return make_mixture(request.param)


def score(model, tokens, positions, mask):
    out = model(tokens, positions, mask)
    return model.logits(out.hidden)


def path(node: int) -> list[int]:
    """The nodes from the root to ``node``."""
    return [*path(PARENTS[node]), node] if node else [0]


def test_a_node_of_a_tree_scores_as_the_end_of_its_chain(model):
    tokens = np.random.default_rng(0).integers(1, model.config.vocab_size, len(PARENTS))
    paths = [path(node) for node in range(len(PARENTS))]
    mask = np.array([[other in mine for other in range(len(PARENTS))] for mine in paths])
    depths = np.array([[len(mine) - 1 for mine in paths]])
    run = jax.jit(score)
    tree = np.asarray(run(model, jnp.asarray(tokens[None]), jnp.asarray(depths), jnp.asarray(mask)))[0]
    for node, mine in enumerate(paths):
        padded = np.pad(tokens[mine], (0, 4 - len(mine)), mode="edge")[None]  # one program for all chains
        chain = run(model, jnp.asarray(padded), jnp.arange(4)[None], jnp.tril(jnp.ones((4, 4), bool)))
        np.testing.assert_allclose(tree[node], chain[0, len(mine) - 1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("batch", [1, pytest.param(8, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "method",
    [
        "ngram",
        pytest.param("draft_model", marks=pytest.mark.slow),
        pytest.param("dynamic_tree", marks=pytest.mark.slow),
    ],
)
def test_greedy_decoding_with_drafts_writes_the_plain_text(model, method, batch):
    """For a random draft and prompts of different lengths."""
    drafter = {"ngram": Ngram(3), "draft_model": DraftModel(3), "dynamic_tree": DynamicTree(6, 3, 2)}[method]
    draft = None if method == "ngram" else make_mixture("mixtral", seed=1, num_layers=1)
    prompts = random_prompts(batch, 24, model.config.vocab_size, seed=2)
    options = dict(temperature=0.0)
    _, plain = decode_all(model, None, Plain(), prompts, **options)
    _, found = decode_all(model, draft, drafter, prompts, **options)
    assert found == plain


@pytest.mark.parametrize("axes", [dict(model=2), dict(data=2, model=2), dict(data=2, nodes=2)], ids=str)
def test_devices_of_a_mesh_compute_the_same(model, axes):
    """The units of each expert are split over ``model``, and each device reads its part of all chosen experts."""
    B, N = 2, 6
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
