"""MXFP4 against the bits of its definition (OCP Microscaling Formats 1.0), and against transformers."""

import numpy as np
import pytest

from specjax.checkpoints.packed.mxfp4 import Packed, unpack


class Tensor:
    """An array with the interface of a safetensors slice."""

    def __init__(self, array):
        self.array = array

    def get_shape(self):
        return list(self.array.shape)

    def __getitem__(self, index):
        return self.array[index]


def number(bits: int) -> float:
    """A number of type E2M1: a sign, two bits of exponent with bias 1, one bit of mantissa."""
    sign, exponent, mantissa = bits >> 3, bits >> 1 & 3, bits & 1
    size = mantissa / 2 if exponent == 0 else (1 + mantissa / 2) * 2.0 ** (exponent - 1)
    return -size if sign else size


def packed() -> tuple[np.ndarray, np.ndarray]:
    """Random blocks uint8 [2, 3, G, 16] that hold every byte, and scales uint8 [2, 3, G]."""
    rng = np.random.default_rng(0)
    blocks = rng.permutation(np.tile(np.arange(256, dtype=np.uint8), 6)).reshape(2, 3, 16, 16)
    return blocks, rng.integers(110, 140, (2, 3, 16), dtype=np.uint8)


def test_every_number_is_that_of_its_bits():
    blocks, scales = packed()
    found = unpack(blocks, scales)
    assert found.shape == (2, 3, 512) and found.dtype == np.float32
    for at in np.ndindex(2, 3, 16, 16):
        byte, scale = int(blocks[at]), 2.0 ** (int(scales[at[:3]]) - 127)
        first = 32 * at[2] + 2 * at[3]
        assert found[at[0], at[1], first] == number(byte & 15) * scale
        assert found[at[0], at[1], first + 1] == number(byte >> 4) * scale


def test_a_packed_tensor_reads_as_its_slices():
    blocks, scales = packed()
    tensor, whole = Packed(Tensor(blocks), Tensor(scales)), unpack(blocks, scales)
    assert tensor.get_shape() == [2, 3, 512]
    index = slice(1, 2), slice(0, 2), slice(30, 70)
    np.testing.assert_array_equal(tensor[index], whole[index])


@pytest.mark.slow
def test_transformers_unpacks_the_same_numbers():
    torch = pytest.importorskip("torch", reason="transformers unpacks with torch")
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    blocks, scales = packed()
    theirs = convert_moe_packed_tensors(torch.tensor(blocks), torch.tensor(scales), dtype=torch.float32)
    np.testing.assert_array_equal(unpack(blocks, scales).swapaxes(1, 2), theirs.numpy())
