"""Quantised weights: the numbers against numpy, products and models by their definitions, and refusals."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from flax import nnx
from support.decoding import finish, new_tokens, start
from support.latent import LATENT
from support.models import TINY, disturbed, language_model, random_prompts, tiny_model

import specjax
from specjax import make_mesh
from specjax.checkpoints.placement import Placement
from specjax.checkpoints.tensors import load_model
from specjax.drafters import DraftModel, Ngram, Plain
from specjax.errors import RequestError
from specjax.kernels.cpu import tiles
from specjax.models import quantised_products
from specjax.models.feed_forwards import ExpertsConfig
from specjax.models.layers import linear, lookup
from specjax.models.quantised_products import in_kernel_order
from specjax.models.quantised_weights import GROUP, SCHEMES, Quantised
from specjax.models.rounding import group_of, quantise, quantise_module
from specjax.parallel import use_mesh
from specjax.training import data, losses

scores = jax.jit(losses.scores)

WIDE = dict(hidden_size=128, intermediate_size=256, head_dim=32, num_layers=1)
"""A tiny model of several groups."""

FLOATS = "fp8", "int8:exact", "int4:exact"
"""Forms whose products have at least the precision of bfloat16 rows on every platform."""


def numbers(weight: Quantised) -> np.ndarray:
    """The numbers q in float64. Of a group's halves, each byte of int4 holds a number below and a number above."""
    weight = weight.in_rows()
    if weight.bits != 4:
        return np.float64(weight.values)
    halves = np.asarray(weight.values).reshape(*weight.values.shape[:-1], -1, weight.group // 2)
    q = np.concatenate([halves & 15, halves >> 4], -1).reshape(weight.shape).astype(np.float64)
    return np.where(q > 7, q - 16, q)


def exact(weight: Quantised) -> np.ndarray:
    """The weight in float64."""
    scales = np.float64(weight.in_rows().scales)
    return (numbers(weight).reshape(*scales.shape, -1) * scales[..., None]).reshape(weight.shape)


def random_weight(outputs: int = 8, inputs: int = 256, dtype="float32") -> jax.Array:
    return jax.device_put(np.random.default_rng(outputs).standard_t(4, (outputs, inputs)).astype(dtype))


def test_int8_is_the_nearest_whole_number_of_each_group():
    w = random_weight()
    q, groups = quantise(w, "int8"), np.asarray(w).reshape(8, -1, GROUP)
    scale = np.abs(groups).max(-1) / np.float32(127)
    np.testing.assert_array_equal(q.values.reshape(groups.shape), np.rint(groups / scale[..., None]))
    np.testing.assert_allclose(q.scales, scale, rtol=1e-6)
    assert np.abs(q.values.reshape(groups.shape)).max(-1).tolist() == [[127] * 8] * 8
    np.testing.assert_allclose(q.dequantise(), exact(q), rtol=1e-6)


@pytest.mark.parametrize(
    "inputs, group",
    [
        (576, 32),
        (48, 24),
        (61, 1),
        *(pytest.param(*pair, marks=pytest.mark.slow) for pair in ((40, 8), (36, 18), (35, 7), (128, 32))),
    ],
)
def test_other_inputs_have_smaller_groups(inputs, group):
    assert group_of(inputs) == group
    weight = random_weight(4, inputs)
    np.testing.assert_allclose(quantise(weight, "int8").dequantise(), weight, atol=0.02 * np.abs(weight).max())


def test_fp8_is_the_nearest_float_of_each_row():
    w = random_weight()
    q = quantise(w, "fp8")
    wanted = (np.asarray(w) / np.asarray(q.scales)).astype(ml_dtypes.float8_e4m3fn)
    np.testing.assert_array_equal(np.asarray(q.values, np.float32), wanted.astype(np.float32))
    assert np.abs(np.float32(q.values)).max(1).tolist() == [448] * 8


def test_int4_has_the_best_scale_of_each_group():
    """No worse than the largest number's scale, in any group; every number is the nearest of its 16."""
    w = np.float64(random_weight())
    q = quantise(jnp.float32(w), "int4")
    found, groups = exact(q), w.reshape(8, 8, GROUP)
    plain = np.abs(groups).max(-1, keepdims=True) / 8
    worst = np.square(np.clip(np.rint(groups / plain), -8, 7) * plain - groups).sum(-1)
    squared = np.square(found - w).reshape(8, 8, GROUP).sum(-1)
    assert q.values.shape == (8, 128) and q.scales.shape == (8, 8) and q.values.dtype == jnp.uint8
    assert (squared <= worst * (1 + 1e-5)).all() and squared.mean() < 0.9 * worst.mean()
    scales = np.float64(q.scales)[..., None]
    np.testing.assert_array_equal(numbers(q).reshape(groups.shape), np.clip(np.rint(groups / scales), -8, 7))
    np.testing.assert_array_equal(np.asarray(q.numbers(), np.float64), numbers(q))


def test_int4_with_an_offset_reaches_from_the_least_number_to_the_largest():
    groups = np.float64(random_weight()).reshape(8, 8, GROUP)
    q = quantise(random_weight(), "int4", offset=True)
    least, largest = groups.min(-1, keepdims=True), groups.max(-1, keepdims=True)
    wanted = np.rint((groups - least) / (largest - least) * 15) / 15 * (largest - least) + least
    assert q.values.shape == (8, 128) and q.offsets.shape == q.scales.shape == (8, 8)
    np.testing.assert_allclose(q.dequantise(), wanted.reshape(8, 256), atol=1e-5)


def test_int4_with_an_offset_finds_the_numbers_of_a_file_in_four_bits_again():
    """A file such as Q4_1: sixteen numbers between the least and the largest of 32."""
    rng = np.random.default_rng(0)
    numbers = rng.integers(0, 16, (6, 4, GROUP))
    numbers[..., :2] = 0, 15
    w = np.float32(numbers * rng.uniform(0.1, 1, (6, 4, 1)) - rng.uniform(0, 9, (6, 4, 1))).reshape(6, -1)
    np.testing.assert_allclose(quantise(jnp.asarray(w), "int4", offset=True).dequantise(), w, atol=1e-5)
    assert np.abs(quantise(jnp.asarray(w), "int4").dequantise() - w).max() > 0.05


@pytest.mark.parametrize("offset", [False, True])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_weight_of_zeros_stays_zero(scheme, offset):
    assert not quantise(jnp.zeros((4, 128)), scheme, offset).dequantise().any()


@pytest.fixture(params=["kernel", "XLA"])
def form(request, monkeypatch):
    """Weights in tiles, which the kernel reads, and in rows, which XLA multiplies."""
    if request.param == "XLA":
        monkeypatch.setattr(tiles, "is_installed", lambda: False)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("scheme", FLOATS)
@pytest.mark.parametrize("rows", [1, pytest.param(5, marks=pytest.mark.slow), 8])
def test_linear_is_the_product_of_the_numbers_and_scales(form, scheme, dtype, rows):
    """numpy's product in float64."""
    weight = in_kernel_order(quantise(random_weight(20, 384, dtype), scheme))
    x = jnp.asarray(np.random.default_rng(rows).normal(size=(rows, 384)), dtype)
    found = jax.jit(linear)(x, weight)
    assert found.dtype == jnp.float32 and weight.dtype == x.dtype
    wanted = np.float64(x) @ exact(weight).T
    np.testing.assert_allclose(found, wanted, atol=1e-4 * np.abs(wanted).max())


@pytest.mark.parametrize("group", [16, 64, 384])
def test_xla_multiplies_weights_of_any_group_and_with_offsets(group):
    """numpy's product in float64, of a weight in tiles too, where a mesh has no kernel."""
    rng = np.random.default_rng(0)
    scales, offsets = (jnp.asarray(rng.normal(size=(20, 384 // group)), jnp.float32) for _ in range(2))
    values = jnp.asarray(rng.integers(-128, 128, (20, 384), np.int8))
    weight = Quantised(values, scales, "int8", jnp.dtype("float32"), offsets)
    x = rng.normal(size=(3, 384))
    wanted = x @ (exact(weight) + np.repeat(np.float64(offsets), group, 1)).T
    for each in (weight, weight.in_tiles()):
        with use_mesh(make_mesh(model=2)):
            found = jax.jit(linear)(jnp.float32(x), each)
        np.testing.assert_allclose(found, wanted, atol=1e-5 * np.abs(wanted).max())


def test_weights_lie_in_tiles_on_one_cpu_only(monkeypatch):
    weight = quantise(random_weight(), "int4")
    assert in_kernel_order(weight).outputs == 8 and in_kernel_order(quantise(random_weight(), "fp8")).outputs is None
    assert in_kernel_order(quantise(random_weight(8, 36), "int8")).outputs is None  # groups of 18
    assert jax.eval_shape(in_kernel_order, weight).outputs is None
    split = jax.device_put(weight, jax.sharding.NamedSharding(make_mesh(model=2), jax.sharding.PartitionSpec("model")))
    assert in_kernel_order(split).outputs is None
    monkeypatch.setattr(tiles, "is_installed", lambda: False)
    assert in_kernel_order(weight).outputs is None


@pytest.mark.parametrize("scheme", SCHEMES)
def test_lookup_reads_rows(form, scheme):
    weight, tokens = in_kernel_order(quantise(random_weight(), scheme)), jnp.array([[3, 0], [7, 7]])
    np.testing.assert_allclose(lookup(weight, tokens), exact(weight)[np.asarray(tokens)], rtol=1e-6)


@pytest.mark.parametrize(
    "scheme", ["int4:exact", *(pytest.param(name, marks=pytest.mark.slow) for name in ("int8:exact", "fp8"))]
)
def test_a_quantised_model_is_the_model_with_rounded_weights(scheme):
    """Tables of embeddings and output matrices have at least eight bits; norms and biases stay."""
    model = tiny_model(**WIDE, qkv_bias=True)
    quantised = quantise_module(model, scheme)
    graph, params = nnx.split(quantised)
    flat = {path: param[...] for path, param in nnx.to_flat_state(params)}
    matrices = {path: value for path, value in flat.items() if isinstance(value, Quantised)}
    assert {path[-1]: value.scheme for path, value in matrices.items()} == {
        "embed": scheme.replace("4", "8"), "head": scheme.replace("4", "8"),
        "qkv": scheme, "out": scheme, "gate_up": scheme, "down": scheme,
    }  # fmt: skip
    rounded = [(path, param.replace(value.dequantise() if path in matrices else value))
               for (path, param), value in zip(nnx.to_flat_state(params), flat.values())]  # fmt: skip
    rounded = nnx.merge(nnx.graphdef(model), nnx.from_flat_state(rounded))
    tokens = jnp.asarray(np.random.default_rng(0).integers(0, 61, (2, 12)))
    wanted = scores(rounded, tokens)
    np.testing.assert_allclose(scores(quantised, tokens), wanted, atol=1e-4 * np.abs(wanted).max())
    assert np.abs(scores(model, tokens) - wanted).max() > 1e-3


@pytest.mark.parametrize(
    "drafter, has_draft",
    [pytest.param(DraftModel(3), True, marks=pytest.mark.slow), (Ngram(), False)],
    ids=["draft_model", "ngram"],
)
@pytest.mark.parametrize("forms", [pytest.param(("int8", "int4"), marks=pytest.mark.slow), ("int4", None)])
def test_greedy_texts_are_those_of_plain_decoding_of_the_same_quantised_model(forms, drafter, has_draft):
    model = tiny_model(**WIDE)
    target, draft = (
        m if form is None else quantise_module(m, form) for m, form in zip((model, disturbed(model)), forms)
    )
    prompts, given = random_prompts(6, 30, seed=3), draft if has_draft else None
    plain = finish(target, None, Plain(), start(target, None, Plain(), prompts))
    drafted = finish(target, given, drafter, start(target, given, drafter, prompts))
    assert new_tokens(drafted, prompts) == new_tokens(plain, prompts)
    assert drafted.counters.accepted_at.sum() > 0


GROUPS = ExpertsConfig(5, 2, 128, bias=True, clamp=(1.702, 7.0))
CLASSES = {
    "experts": tiny_model(**WIDE, config=TINY.replace(mlps=(GROUPS,))),
    "latent": tiny_model(config=LATENT, num_layers=1, mixers=LATENT.mixers[:1], mlps=()),
}


def rounded(model):
    """The quantised model with full weights of the same numbers, widened in numpy."""
    widen = lambda w: jnp.asarray(exact(w) if w.ndim == 2 else [exact(w[i]) for i in range(w.shape[0])], w.dtype)
    is_weight = lambda leaf: isinstance(leaf, Quantised)
    return jax.tree.map(lambda leaf: widen(leaf) if is_weight(leaf) else leaf, model, is_leaf=is_weight)


FORMS_OF_CLASSES = [("experts", scheme) for scheme in FLOATS] + [("latent", "int8:exact")]


@pytest.mark.parametrize(
    "kind, scheme",
    [
        pytest.param(*pair, marks=() if pair == ("experts", "int8:exact") else pytest.mark.slow)
        for pair in FORMS_OF_CLASSES
    ],
)
def test_a_quantised_model_of_each_class_is_the_model_with_rounded_weights(kind, scheme):
    """Experts, with the matrices of all experts rounded; and latent attention, with absorbed matrices."""
    model = CLASSES[kind]
    quantised, tokens = quantise_module(model, scheme), jnp.asarray(np.random.default_rng(0).integers(0, 61, (2, 12)))
    if kind == "experts":
        mlp = quantised.layers[0].mlp
        assert mlp.downs[...].scheme == scheme and not isinstance(mlp.router[...], Quantised)
    found, wanted, full = (scores(each, tokens) for each in (quantised, rounded(quantised), model))
    np.testing.assert_allclose(found, wanted, atol=1e-4 * np.abs(wanted).max())
    assert 1e-4 < np.abs(full - wanted).mean() < 0.1 * np.abs(full).max()


@pytest.mark.slow
def test_devices_of_a_mesh_compute_the_same_with_quantised_experts():
    model, tokens = quantise_module(CLASSES["experts"], "int8:exact"), jnp.asarray([[3, 1, 4, 1, 5, 9]])
    with use_mesh(make_mesh(model=2)):
        together = jax.jit(scores)(model, tokens)
    np.testing.assert_allclose(together, scores(model, tokens), rtol=1e-3, atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("kind", CLASSES)
def test_greedy_texts_of_each_class_are_those_of_plain_decoding_of_the_same_quantised_model(kind):
    target, draft = quantise_module(CLASSES[kind], "int8"), disturbed(CLASSES[kind])
    prompts = random_prompts(6, 30, seed=3)
    plain = finish(target, None, Plain(), start(target, None, Plain(), prompts))
    drafted = finish(target, draft, DraftModel(3), start(target, draft, DraftModel(3), prompts))
    assert new_tokens(drafted, prompts) == new_tokens(plain, prompts)
    assert drafted.counters.accepted_at.sum() > 0


@pytest.mark.parametrize("scheme", ["int4", *(pytest.param(name, marks=pytest.mark.slow) for name in ("int8", "fp8"))])
def test_a_loaded_model_is_quantised_as_it_is_read(scheme, tmp_path):
    """Also on a mesh, where each device reads its own part."""
    model = tiny_model(**WIDE)
    specjax.save(language_model(model), tmp_path / "model")
    is_weight = lambda leaf: isinstance(leaf, Quantised)
    rows = lambda leaf: leaf.in_rows() if is_weight(leaf) else leaf
    wanted = jax.tree.leaves(jax.tree.map(rows, quantise_module(model, scheme), is_leaf=is_weight))
    for mesh in (None, specjax.make_mesh(model=2)):
        loaded = load_model(tmp_path / "model", Placement(mesh=mesh, quantize=scheme))
        found = jax.tree.leaves(jax.tree.map(rows, loaded, is_leaf=is_weight))
        for ours, theirs in zip(found, wanted, strict=True):
            np.testing.assert_allclose(np.float32(ours), np.float32(theirs), rtol=1e-6)
    assert any(leaf.dtype.itemsize == 1 and not leaf.sharding.is_fully_replicated for leaf in found)


def test_what_cannot_be_quantised_is_refused_in_one_line(tmp_path):
    specjax.save(language_model(tiny_model(intermediate_size=33)), tmp_path / "model")
    with pytest.raises(
        RequestError, match=r"int4 has two inputs in a byte, and layers.0.[a-z_.]+ has 33 inputs; use int8"
    ):
        load_model(tmp_path / "model", Placement(quantize="int4"))
    with pytest.raises(
        RequestError,
        match="quantize is 'int3'; it must be one of int8, int4, fp8, int8:exact, int4:exact, stored, stored:exact",
    ):
        specjax.load(tmp_path / "model", quantize="int3")
    target = specjax.load(tmp_path / "model", quantize="fp8")
    with pytest.raises(RequestError, match="embed has fp8 weights, which is not saved quantised"):
        specjax.save(target, tmp_path / "saved")
    with pytest.raises(RequestError, match="is a head, and heads are not quantised"):
        specjax.load_drafter("tiny-python-mtp", specjax.load("tiny-python"), quantize="int8")


@pytest.mark.slow
def test_the_perplexity_of_the_embedded_target_hardly_rises():
    """On held-out code: at most 1 % with int8 and fp8, 4 % with int4."""
    small = specjax.load("tiny-python")
    _, held_out = data.read_streams((), small.tokenizer, small.config.eos_token_ids[0])
    windows = jnp.asarray(held_out.cut(0, 0, 8, 256)[0])
    plain = losses.next_token(small.model, windows)
    for scheme, most in {"int8": 1.01, "fp8": 1.01, "int4": 1.04}.items():
        found = losses.next_token(quantise_module(small.model, scheme), windows)
        assert 0.99 < np.exp(found - plain) < most


ONE_ROW = [(96,), (1, 96), (1, 1, 96)]
CELLS = [("int8", "cuda", shape) for shape in ONE_ROW]
CELLS += [(scheme, "tpu", shape) for scheme in ("int8", "int4", "stored") for shape in (*ONE_ROW, (3, 96))]
ALIKE = ONE_ROW[:2]  # in the second tier; one row of three axes has their form


@pytest.mark.parametrize(
    "scheme, platform, shape",
    [pytest.param(*cell, marks=pytest.mark.slow if cell[2] in ALIKE else ()) for cell in CELLS],
)
def test_gpus_and_tpus_multiply_as_other_platforms(scheme, platform, shape):
    """The forms that only they compute, against the product of all other platforms."""
    rng = np.random.default_rng(0)
    weight = quantise(jnp.asarray(rng.normal(size=(40, 96)), jnp.bfloat16), scheme.replace("stored", "int4"))
    if scheme == "stored":
        weight = weight.replace(offsets=jnp.asarray(rng.normal(size=weight.scales.shape), jnp.float32))
    rows = jnp.asarray(rng.normal(size=shape), jnp.bfloat16)
    form = {"cuda": quantised_products._sum_one_row, "tpu": quantised_products._multiply_on_tpu}[platform]
    found, expected = form(rows, weight), quantised_products._multiply_matrices(rows, weight)
    assert found.shape == (*shape[:-1], 40) and found.dtype == jnp.float32
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
