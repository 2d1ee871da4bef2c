"""Pruned models against parts that contribute nothing, against numpy, and against transformers."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from support.models import TINY, language_model, tiny_model

from specjax import RequestError, load
from specjax.tools.grow.axes import gate_up_rows
from specjax.tools.grow.grow import grow_model
from specjax.tools.prune import Importance, Sizes, learn_masks, masks, measure_importance, prune
from specjax.tools.prune.cut import prune_config
from specjax.training import losses

scores = jax.jit(losses.scores)
WINDOWS = np.random.default_rng(0).integers(0, 61, (8, 24), np.int32)
SHAPE = TINY.replace(num_layers=4, hidden_size=64, intermediate_size=80, num_heads=8, num_kv_heads=2)


@pytest.fixture(scope="module")
def grown(tmp_path_factory):
    """A small model, and a larger one that computes the same: its further parts add nothing."""
    small = tiny_model(3, 8.0)
    directory = tmp_path_factory.mktemp("grown") / "grown"
    like = SHAPE.replace(head_dim=small.config.head_dim, vocab_size=small.config.vocab_size)
    grow_model(language_model(small, "small"), like, directory)
    return small, load(directory).model


def test_pruning_finds_the_parts_that_matter(grown):
    """Layers, heads and units that add nothing, and channels that stay zero, are cut; the text stays the same."""
    small, large = grown
    c = small.config
    importance = measure_importance(large, WINDOWS)
    sizes = Sizes(c.num_layers, c.hidden_size, c.intermediate_size, c.num_heads)
    cut = prune(large, importance, sizes)
    assert cut.config.num_weights == c.num_weights
    tokens = jnp.asarray(WINDOWS)
    np.testing.assert_allclose(scores(cut, tokens), scores(small, tokens), atol=2e-3)


@pytest.mark.slow
def test_masks_find_parts_that_activations_miss(grown):
    """The parts of the small model are the first ones; the units that nothing reads have the largest activations."""
    small, large = grown
    loud, c = nnx.merge(*nnx.split(large)), small.config
    useful = [np.abs(np.asarray(layer.mlp.down[...])).max(0) > 0 for layer in loud.layers[: c.num_layers]]
    for layer, units in zip(loud.layers, useful):
        rows = gate_up_rows(loud.config)[:, ~units].ravel()
        layer.mlp.gate_up[...] = layer.mlp.gate_up[...].at[rows].multiply(100)
    goal = prune_config(loud.config, Sizes(c.num_layers, c.hidden_size, c.intermediate_size, c.num_heads))
    measured = measure_importance(loud, WINDOWS)
    learned = learn_masks(loud, measured, WINDOWS, goal, steps=600)
    most = lambda values, count: set(np.argsort(values, kind="stable")[-count:].tolist())  # of equals the last ones
    assert most(learned.layers, c.num_layers) == set(range(c.num_layers))
    assert most(learned.channels, c.hidden_size) == set(range(c.hidden_size))
    for number, units in enumerate(useful):
        read = np.abs(np.asarray(loud.layers[number].mixer.out[...])).reshape(64, 8, -1).max((0, 2)) > 0
        assert most(learned.heads[number], c.num_heads) == set(np.flatnonzero(read).tolist())
        found = lambda importance, units=units: len(most(importance, c.intermediate_size) & {*np.flatnonzero(units)})
        assert found(measured.units[number]) < 20 and found(learned.units[number]) > 42  # of 48


def test_the_law_of_the_masks():
    """Draws against the closed form of Louizos et al., equation 12, and its limits."""
    log_alpha = jnp.array([-4.0, -1.0, 0.5, 3.0])
    drawn = np.asarray(masks.draw(jnp.tile(log_alpha, (20_000, 1)), jax.random.key(0)))
    assert drawn.min() == 0 and drawn.max() == 1
    above = 1 / (1 + np.exp(-(np.array(log_alpha) - 2 / 3 * np.log(0.1 / 1.1))))
    np.testing.assert_allclose((drawn > 0).mean(0), above, atol=0.015)
    np.testing.assert_allclose(masks.chance_above_zero(log_alpha), above, rtol=1e-5)


def test_all_parts_kept_is_the_same_model():
    model = tiny_model(5, 8.0, qkv_bias=True, out_bias=True, mlp_bias=True)
    same = prune(model, measure_importance(model, WINDOWS), Sizes())
    for a, b in zip(jax.tree.leaves(jax.tree.map(np.asarray, model)), jax.tree.leaves(jax.tree.map(np.asarray, same))):
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_heads_and_units_are_cut_where_numpy_cuts_them():
    """A pruned layer against the old one in which the other heads and units are set to zero."""
    model = tiny_model(6, 8.0, num_layers=1, num_heads=6, num_kv_heads=2)
    c = model.config
    importance = measure_importance(model, WINDOWS)
    heads = np.array([[0, 3, 2, 9, 8, 7]])  # of key head 0 the heads 1 and 2 stay, of key head 1 the heads 3 and 4
    units = np.arange(c.intermediate_size)[None] % 3
    chosen = dataclasses.replace(importance, heads=heads, units=units)
    kept_units = np.sort(np.argsort(-units[0], kind="stable")[: c.intermediate_size // 2])
    cut = prune(model, chosen, Sizes(heads=4, intermediate=len(kept_units)))
    silent = tiny_model(6, 8.0, num_layers=1, num_heads=6, num_kv_heads=2)
    out, down = (np.array(matrix[...]) for matrix in (silent.layers[0].mixer.out, silent.layers[0].mlp.down))
    for head in (0, 5):
        out[:, head * c.head_dim : (head + 1) * c.head_dim] = 0
    down[:, np.setdiff1d(np.arange(c.intermediate_size), kept_units)] = 0
    silent.layers[0].mixer.out[...], silent.layers[0].mlp.down[...] = jnp.asarray(out), jnp.asarray(down)
    tokens = jnp.asarray(WINDOWS)
    np.testing.assert_allclose(scores(cut, tokens), scores(silent, tokens), atol=1e-4)


def test_layers_by_number():
    model = tiny_model(7, 8.0, num_layers=3)
    cut = prune(model, measure_importance(model, WINDOWS), Sizes(layers=(0, 2)))
    for mine, old in zip(cut.layers, (0, 2)):
        np.testing.assert_array_equal(mine.mixer.qkv[...], model.layers[old].mixer.qkv[...])


def test_importance_of_a_layer_by_numpy():
    """One minus the cosine between the residual streams before and after a layer (ShortGPT)."""
    model = tiny_model(8, 8.0, num_layers=2)
    taps = jax.jit(lambda model, tokens: losses.forward(model, tokens, taps=(0, 1, 2)).taps)(model, WINDOWS)
    a, b, c = (np.asarray(tap, np.float64) for tap in taps)
    unlike = lambda x, y: 1 - np.mean((x * y).sum(-1) / np.linalg.norm(x, axis=-1) / np.linalg.norm(y, axis=-1))
    found: Importance = measure_importance(model, WINDOWS)
    np.testing.assert_allclose(found.layers, [unlike(a, b), unlike(b, c)], atol=1e-5)
    np.testing.assert_allclose(found.moments[:, 0], [(a**2).mean((0, 1)), (b**2).mean((0, 1))], rtol=1e-4)


@pytest.mark.parametrize(
    "sizes, words",
    [
        (Sizes(layers=5), "layers is 5 and the model has 4; give 1 to 4"),
        (Sizes(width=128), "width is 128 and the model has 64"),
        (Sizes(intermediate=81), "intermediate is 81 and the model has 80"),
        (Sizes(heads=9), "heads is 9 and the model has 8"),
        (Sizes(heads=7), "7 heads cannot be taken evenly from 2 key heads with 4 query heads each; give 1, 2, 3, 4, 6, 8"),
        (Sizes(width=62), "width 62 is no multiple of heads 8"),
        (Sizes(layers=(1, 4)), "are not among the model's 4; use 0 to 3"),
    ],
)  # fmt: skip
def test_sizes_that_do_not_fit(sizes, words):
    with pytest.raises(RequestError, match=words):
        prune_config(SHAPE, sizes)


def test_layers_that_are_not_llamas_are_refused():
    with pytest.raises(RequestError, match="a model of the family opt cannot be pruned"):
        prune_config(SHAPE.replace(family="opt", norm="layer"), Sizes(layers=2))
