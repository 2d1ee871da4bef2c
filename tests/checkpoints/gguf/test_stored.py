"""Packed GGUF tensors that keep their numbers: random blocks against the package's own unpacking."""

import gguf
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.gguf_cases import raw_config
from support.gguf_files import random_tensors, write_gguf

from specjax.checkpoints import placement
from specjax.checkpoints.gguf.block_types import BLOCK_TYPES
from specjax.checkpoints.gguf.packed import TYPES, Joined, PackedTensor, Reordered
from specjax.checkpoints.packed.stored import in_one_form
from specjax.checkpoints.placement import Placement
from specjax.checkpoints.tensors import load_model
from specjax.errors import SpecjaxWarning
from specjax.models.quantised_weights import Quantised

DELTA_RULE = {
    "linear_key_head_dim": 16, "linear_value_head_dim": 16, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32,
}  # fmt: skip
"""Sizes whose matrices have whole blocks."""


def random_tensor(kind: str, rows: int = 6, blocks: int = 2) -> PackedTensor:
    """Random bytes. Those of float16 scales are finite."""
    numbers, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    data = np.random.default_rng(size).integers(0, 256, (rows, blocks, size), np.uint8)
    places = np.dtype(BLOCK_TYPES[kind].fields).fields
    for name in {"d", "m"} & places.keys():
        data[..., places[name][1] + 1] = data[..., places[name][1] + 1] & 0xBF
    return PackedTensor(kind, [rows, blocks * numbers], data.reshape(rows, -1))


def values(stored) -> np.ndarray:
    """s q + m in float32, from all parts."""
    spread = lambda part: np.repeat(part[:, :], stored.group, 1)
    product = spread(stored.scales) * stored.numbers[:, :].astype(np.float32)
    return product if stored.offsets is None else product + spread(stored.offsets)


def read(*indices):
    return (slice(*indices[:2]), slice(*indices[2:]))


@pytest.mark.parametrize("kind", BLOCK_TYPES)
def test_the_numbers_are_those_of_the_package(kind):
    tensor = random_tensor(kind)
    stored = tensor.stored
    np.testing.assert_array_equal(values(stored), tensor[:, :])
    numbers = stored.numbers[:, :]
    low, high = (-128, 127) if stored.scheme == "int8" else (0, 15) if stored.offsets else (-8, 7)
    assert numbers.dtype == np.int8 and low <= numbers.min() and numbers.max() <= high
    np.testing.assert_array_equal(stored.numbers[2:5, 8:40], numbers[2:5, 8:40])
    np.testing.assert_array_equal(stored.scales[2:5, 1:2], stored.scales[:, :][2:5, 1:2])


def test_every_packed_type_keeps_its_numbers():
    assert set(BLOCK_TYPES) == set(TYPES) - {"F32", "F16", "BF16"}


def test_rows_in_another_order():
    tensor, order = random_tensor("Q4_K"), np.array([3, 1, 2, 0])
    np.testing.assert_array_equal(values(Reordered(tensor, order).stored), tensor[:, :][order])


def test_rows_of_two_tensors():
    joined, order = Joined(random_tensor("Q4_K"), random_tensor("Q6_K")), np.array([7, 3, 1, 11, 6, 2, 0])
    rows = np.concatenate([random_tensor("Q4_K")[:, :], random_tensor("Q6_K")[:, :]])
    np.testing.assert_array_equal(joined[4:9, 8:40], rows[4:9, 8:40])
    np.testing.assert_array_equal(values(Reordered(joined, order).stored), rows[order])


@pytest.mark.parametrize(
    "kinds, form",
    [(("Q4_0", "Q4_1"), ("int4", 32)), (("Q4_K", "Q6_K"), ("int8", 16)), (("Q4_0", "Q8_0", "Q5_1"), ("int8", 32)),
     (("Q2_K", "Q4_K"), ("int4", 16))],
)  # fmt: skip
def test_tensors_of_one_parameter_get_one_form(kinds, form):
    tensors = [random_tensor(kind) for kind in kinds]
    for stored, tensor in zip(in_one_form([tensor.stored for tensor in tensors]), tensors):
        assert (stored.scheme, stored.group) == form
        np.testing.assert_allclose(values(stored), tensor[:, :], rtol=1e-6, atol=0)
        numbers = stored.numbers[:, :]
        assert form[0] == "int8" or 0 <= numbers.min() <= numbers.max() <= 15


def test_full_tensors_have_no_form():
    full = PackedTensor("F16", [2, 4], np.zeros((2, 4), np.float16))
    assert full.stored is None and in_one_form([full.stored, random_tensor("Q4_0").stored]) is None


@pytest.mark.parametrize("family", ["llama", "mixtral", "qwen3_next"])
@pytest.mark.parametrize("kind, form", [("Q4_1", "stored"), ("Q8_0", "stored:exact")])
def test_a_stored_model_has_the_numbers_of_the_file(family, kind, form, tmp_path):
    """Every matrix, also queries and keys, whose rows llama.cpp permutes or parts, and experts; unpacked in float32 beside."""
    raw = raw_config(family) | {
        "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    }  # fmt: skip
    raw |= DELTA_RULE if family == "qwen3_next" else {}
    path = write_gguf(tmp_path / "model.gguf", random_tensors(raw), raw, kind=kind)
    is_weight = lambda leaf: isinstance(leaf, Quantised)
    stored, full = (
        jax.tree.leaves(load_model(path, Placement(**options)), is_leaf=is_weight)
        for options in (dict(quantize=form), dict(dtype="float32"))
    )
    assert {leaf.scheme for leaf in stored if is_weight(leaf)} == {"int4" if kind == "Q4_1" else "int8:exact"}
    assert sum(map(is_weight, stored)) > 5
    unpack = jax.jit(lambda weights: [weight.astype(jnp.float32) for weight in weights])
    pairs = [pair for pair in zip(stored, full, strict=True) if is_weight(pair[0])]
    for ours, (_, theirs) in zip(unpack([weight for weight, _ in pairs]), pairs):
        np.testing.assert_array_equal(ours, theirs)


def test_matrices_that_are_not_packed_are_named(tmp_path):
    raw = raw_config("llama")
    path = write_gguf(tmp_path / "model.gguf", random_tensors(raw), raw, kind="F32")
    with pytest.warns(SpecjaxWarning, match=r"\d+ matrices are not packed in four or eight bits, such as [a-z0-9._]+;"):
        load_model(path, Placement(quantize="stored"))


def test_a_missing_kernel_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(placement, "is_installed", lambda: False)
    raw = raw_config("llama")
    path = write_gguf(tmp_path / "model.gguf", random_tensors(raw), raw)
    with pytest.warns(
        SpecjaxWarning, match=r"int8 weights need the kernel of the extra cpu; .+ pip install 'specjax\[cpu\]'"
    ):
        load_model(path, Placement(quantize="int8"))


def test_missing_instructions_are_said(tmp_path, monkeypatch):
    monkeypatch.setattr(placement, "instructions", lambda: "plain")
    raw = raw_config("llama")
    path = write_gguf(tmp_path / "model.gguf", random_tensors(raw), raw)
    with pytest.warns(
        SpecjaxWarning, match="int4 weights need VNNI, AVX2 or the dot products of Arm; .+ one by one"
    ) as said:
        load_model(path, Placement(quantize="int4"))
    assert len([one for one in said if "VNNI" in str(one.message)]) == 1
