"""Packed GGUF tensors that keep their numbers: random blocks against the package's own unpacking."""

import gguf
import numpy as np
import pytest

from specjax.checkpoints.gguf.blocks import KINDS
from specjax.checkpoints.gguf.packed import PackedTensor, Reordered
from specjax.checkpoints.packed.stored import in_one_form


def random_tensor(kind: str, rows: int = 6, blocks: int = 2) -> PackedTensor:
    """Random bytes. Those of float16 scales are finite."""
    numbers, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    data = np.random.default_rng(size).integers(0, 256, (rows, blocks, size), np.uint8)
    places = np.dtype(KINDS[kind].fields).fields
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


@pytest.mark.parametrize("kind", KINDS)
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
    from specjax.checkpoints.gguf.packed import TYPES

    assert set(KINDS) == set(TYPES) - {"F32", "F16", "BF16"}


def test_rows_in_another_order():
    tensor, order = random_tensor("Q4_K"), np.array([3, 1, 2, 0])
    np.testing.assert_array_equal(values(Reordered(tensor, order).stored), tensor[:, :][order])


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
