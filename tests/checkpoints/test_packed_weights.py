"""Checkpoints with packed weights: tensors packed here by the formats' definitions, in plain numpy, and refusals."""

import json
from pathlib import Path

import jax
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file
from support.models import tiny_model

from specjax.checkpoints.packed.weights import unpack_tensors
from specjax.checkpoints.placement import Placement
from specjax.checkpoints.tensors import load_model, save_model
from specjax.errors import CheckpointError, ConfigError, SpecjaxError
from specjax.models.quantised_weights import Quantised
from specjax.parallel import make_mesh

MODEL = tiny_model(hidden_size=128, intermediate_size=256, head_dim=32, num_layers=1, sharpness=3.0)
FP8 = ml_dtypes.float8_e4m3fn


def words(q: np.ndarray, bits: int, order=range(8)) -> np.ndarray:
    """Numbers [rows, columns] in int32, along the columns. ``order`` is the column of each part, from the lowest bits on."""
    per = 32 // bits
    found = np.zeros((len(q), q.shape[1] // per), np.uint32)
    for word in range(found.shape[1]):
        for place in range(per):
            column = word * per + (order[place] if per == 8 else place)
            found[:, word] |= q[:, column].astype(np.uint32) << np.uint32(bits * place)
    return found.view(np.int32)


def split(w: np.ndarray, size: int, levels: int, zero=None):
    """Numbers 0 to ``levels`` - 1, scales [out, G] and zero points [out, G] of rows w in groups of ``size``."""
    groups = w.reshape(len(w), -1, size)
    scales = np.float16(2 * np.abs(groups).max(-1) / (levels - 1)).astype(np.float32)
    zeros = np.full(scales.shape, levels // 2) if zero is None else zero.integers(4, 12, scales.shape)
    q = np.clip(np.rint(groups / scales[..., None]) + zeros[..., None], 0, levels - 1).astype(int)
    whole = ((q - zeros[..., None]) * scales[..., None]).reshape(w.shape)
    return q.reshape(w.shape), scales, zeros, whole


def gptq(w, size=128, bits=4, version="gptq", zero=None, ordered=True):
    order = np.arange(w.shape[1]) if ordered else np.random.default_rng(0).permutation(w.shape[1])
    q, scales, zeros, whole = split(w[:, order], size, 2**bits, zero)
    place = np.argsort(order)
    tensors = {
        "qweight": words(q[:, place], bits).T,
        "qzeros": words(zeros.T - (version == "gptq"), bits),
        "scales": scales.T.astype(np.float16),
        "g_idx": (place // size).astype(np.int32),
    }
    return tensors, whole[:, place]


def awq(w, size=128):
    q, scales, zeros, whole = split(w, size, 16, np.random.default_rng(1))
    order = [0, 2, 4, 6, 1, 3, 5, 7]
    packed = {
        "qweight": words(q.T, 4, order),
        "qzeros": words(zeros.T, 4, order),
        "scales": scales.T.astype(np.float16),
    }
    return packed, whole


def pack_quantized(w, size=128, bits=4):
    q, scales, _, whole = split(w, size, 2**bits)
    shape = np.array(w.shape, np.int64)
    return {"weight_packed": words(q, bits), "weight_scale": scales, "weight_shape": shape}, whole


def int_quantized(w):
    scales = np.abs(w).max(1, keepdims=True) / 127
    q = np.rint(w / scales).astype(np.int8)
    return {"weight": q, "weight_scale": scales}, q * scales


def float_quantized(w, scales=None):
    scales = np.abs(w).max(1, keepdims=True) / 448 if scales is None else scales
    q = (w / scales).astype(FP8)
    return {"weight": q, "weight_scale": np.float32(scales)}, q.astype(np.float32) * scales


def fp8_blocks(w):
    blocks = -(-w.shape[0] // 128), w.shape[1] // 128
    scales = np.empty(blocks, np.float32)
    for i, j in np.ndindex(*blocks):
        scales[i, j] = np.abs(w[128 * i : 128 * (i + 1), 128 * j : 128 * (j + 1)]).max() / 448
    spread = np.repeat(np.repeat(scales, 128, 0)[: len(w)], 128, 1)
    q = (w / spread).astype(FP8)
    return {"weight": q, "weight_scale_inv": scales}, q.astype(np.float32) * spread


def compressed(format_: str, **weights) -> dict:
    groups = {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 8, "symmetric": True} | weights}}
    return {"quant_method": "compressed-tensors", "format": format_, "config_groups": groups, "ignore": ["lm_head"]}


FORMATS = {
    "gptq": (gptq, {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True}, "int4:exact"),
    "gptq v2": (lambda w: gptq(w, version="v2"),
                {"quant_method": "gptq", "bits": 4, "group_size": 128, "checkpoint_format": "gptq_v2"}, "int4:exact"),
    "gptq with zero points": (lambda w: gptq(w, zero=np.random.default_rng(0)),
                              {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": False}, "int4:exact"),
    "gptq with an order": (lambda w: gptq(w, size=32, ordered=False),
                           {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": True}, None),
    "gptq of eight bits with zero points": (lambda w: gptq(w, 64, 8, zero=np.random.default_rng(0)),
                                            {"quant_method": "gptq", "bits": 8, "group_size": 64}, "int8:exact"),
    "gptq of rows": (lambda w: gptq(w, size=w.shape[1], bits=8), {"quant_method": "gptq", "bits": 8, "group_size": -1}, "int8:exact"),
    "awq": (awq, {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}, "int4:exact"),
    "pack-quantized": (pack_quantized, compressed("pack-quantized", num_bits=4, strategy="group", group_size=128), "int4:exact"),
    "pack-quantized, groups of 32": (lambda w: pack_quantized(w, 32), compressed("pack-quantized", num_bits=4, group_size=32), "int4:exact"),
    "pack-quantized, 8 bits": (
        lambda w: pack_quantized(w, w.shape[1], 8),
        compressed("pack-quantized", num_bits=8, strategy="channel"),
        "int8:exact",
    ),
    "int-quantized": (int_quantized, compressed("int-quantized", strategy="channel"), "int8:exact"),
    "float-quantized": (float_quantized, compressed("float-quantized", type="float", strategy="channel"), "fp8"),
    "float-quantized of one scale": (lambda w: float_quantized(w, np.float32(np.abs(w).max() / 448).reshape(1)),
                                     compressed("float-quantized", type="float", strategy="tensor"), "fp8"),
    "fp8": (fp8_blocks, {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}, "fp8"),
}  # fmt: skip
"""For each format its packer, its ``quantization_config``, and the form that holds it in memory."""


def write(directory: Path, pack, settings: dict | None, change=lambda tensors: tensors) -> tuple[Path, Path]:
    """Checkpoints with the packed layers, and with the same numbers unpacked."""
    packed, whole = {}, {}
    save_model(MODEL, directory / "whole")

    for name, value in load_file(directory / "whole" / "model.safetensors").items():
        packed[name] = whole[name] = value
        if "_proj" in name:
            parts, whole[name] = pack(np.float32(value))
            del packed[name]
            packed |= {name.replace("weight", part): np.ascontiguousarray(x) for part, x in parts.items()}
    save_tensors(whole, directory / "whole" / "model.safetensors")
    (directory / "packed").mkdir()
    save_tensors(change(packed), directory / "packed" / "model.safetensors")
    config = json.loads((directory / "whole" / "config.json").read_text())
    (directory / "packed" / "config.json").write_text(json.dumps(config | {"quantization_config": settings}))
    return directory / "packed", directory / "whole"


def save_tensors(tensors: dict, path: Path) -> None:
    """A file in the safetensors format. Its library cannot write eight-bit floats from numpy."""
    names = {"float32": "F32", "float16": "F16", "int32": "I32", "int64": "I64", "int8": "I8", "uint8": "U8"}
    names |= {"float8_e4m3fn": "F8_E4M3"}
    header, data = {}, b""
    for name, value in tensors.items():
        value = np.asarray(value, np.float32) if value.dtype == np.float64 else value
        header[name] = dict(
            dtype=names[value.dtype.name], shape=value.shape, data_offsets=[len(data), len(data) + value.nbytes]
        )
        data += value.tobytes()
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def weights(directory: Path, **options) -> list:
    is_weight = lambda leaf: isinstance(leaf, Quantised)
    return jax.tree.leaves(load_model(directory, Placement(**options)), is_leaf=is_weight)


@pytest.mark.parametrize("format_", FORMATS)
def test_a_packed_checkpoint_has_the_weights_of_its_numbers(format_, tmp_path):
    pack, settings, scheme = FORMATS[format_]
    packed, whole = write(tmp_path, pack, settings)
    found, wanted = weights(packed), weights(whole)
    kept = [leaf.scheme for leaf in found if isinstance(leaf, Quantised)]
    count = 3 if format_ == "fp8" else 4  # of qkv, out, gate_up and down; the last one has two blocks of inputs
    assert kept == ([scheme] * count if scheme else [])
    unpack = lambda leaf: leaf.dequantise() if isinstance(leaf, Quantised) else leaf
    found = jax.jit(lambda leaves: [unpack(leaf) for leaf in leaves])(found)
    for ours, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("format_", ["gptq", "awq", "float-quantized"])
def test_each_device_reads_its_own_part(format_, tmp_path):
    pack, settings, _ = FORMATS[format_]
    packed, _ = write(tmp_path, pack, settings)
    alone, split_ = (weights(packed, mesh=mesh) for mesh in (None, make_mesh(model=2)))
    unpack = jax.jit(lambda leaves: [leaf.astype(np.float32) for leaf in leaves])
    for ours, theirs in zip(unpack(alone), unpack(split_), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert any(not leaf.sharding.is_fully_replicated for leaf in jax.tree.leaves(split_))


@pytest.mark.parametrize("format_", ["gptq", "awq", "int-quantized"])
def test_stored_weights_have_integer_products(format_, tmp_path):
    """The same numbers, in the forms whose activations a CPU rounds."""
    packed, _ = write(tmp_path, *FORMATS[format_][:2])
    for ours, theirs in zip(weights(packed, quantize="stored"), weights(packed), strict=True):
        if isinstance(theirs, Quantised):
            assert f"{ours.scheme}:exact" == theirs.scheme
            np.testing.assert_array_equal(ours.dequantise(), theirs.dequantise())


def with_biases(number: float):
    """Adds a bias of this number to each packed module."""

    def change(tensors):
        modules = [name.removesuffix(".qweight") for name in tensors if name.endswith(".qweight")]
        return tensors | {f"{module}.bias": np.full(3, number, np.float16) for module in modules}

    return change


def test_biases_of_zeros_that_the_model_has_not_are_left_out(tmp_path):
    packed, whole = write(tmp_path, *FORMATS["gptq"][:2], change=with_biases(0))
    assert len(weights(packed)) == len(weights(whole))


def test_biases_of_other_numbers_are_unexpected(tmp_path):
    packed, _ = write(tmp_path, *FORMATS["gptq"][:2], change=with_biases(1))
    with pytest.raises(CheckpointError, match="q_proj.bias is unexpected"):
        load_model(packed)


def test_another_form_and_a_dtype_may_be_asked_for(tmp_path):
    packed, whole = write(tmp_path, *FORMATS["gptq"][:2])
    for ours, theirs in zip(weights(packed, quantize="int8"), weights(whole, quantize="int8"), strict=True):
        if isinstance(ours, Quantised):
            assert ours.scheme == "int8"
            np.testing.assert_allclose(ours.dequantise(), theirs.dequantise(), atol=1e-5)


def test_mxfp4_by_its_definition():
    """Blocks of 32 numbers with a power of two each (OCP MX 1.0); byte i holds numbers 2 i and 2 i + 1."""
    values = [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6]
    rng = np.random.default_rng(0)
    bits, powers = rng.integers(0, 16, (3, 5, 2, 32)), rng.integers(120, 134, (3, 5, 2))
    wanted = np.empty((3, 5, 64))
    for e, o, g, i in np.ndindex(3, 5, 2, 32):
        wanted[e, o, 32 * g + i] = values[bits[e, o, g, i]] * 2.0 ** (powers[e, o, g] - 127)
    blocks = (bits[..., 0::2] | bits[..., 1::2] << 4).astype(np.uint8)
    tensors = {"w_blocks": Stored(blocks), "w_scales": Stored(powers.astype(np.uint8)), "bias": Stored(np.ones(3))}
    found = unpack_tensors(tensors, {"quant_method": "mxfp4"}, "config.json")
    assert set(found) == {"w", "bias"} and tuple(found["w"].get_shape()) == (3, 5, 64)
    np.testing.assert_array_equal(found["w"][slice(1, 3), slice(None), slice(8, 40)], wanted[1:3, :, 8:40])


class Stored:
    """A tensor as safetensors gives it."""

    def __init__(self, values):
        self.values = values

    def get_shape(self):
        return list(self.values.shape)

    def __getitem__(self, index):
        return self.values[index]


@pytest.mark.parametrize(
    ("settings", "error", "words_"),
    [
        ({"quant_method": "bitsandbytes"}, ConfigError, "quantization_config.quant_method is 'bitsandbytes'"),
        ({"bits": 4}, ConfigError, "quantization_config.quant_method is missing"),
        ({"quant_method": "gptq", "bits": 3}, ConfigError, "quantization_config.bits is 3"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 96}, CheckpointError, "group_size 96 does not divide"),
        ({"quant_method": "awq", "bits": 4, "version": "gemv"}, ConfigError, "quantization_config.version is 'gemv'"),
        (compressed("nvfp4-pack-quantized"), ConfigError, "quantization_config.format is 'nvfp4-pack-quantized'"),
        (compressed("int-quantized", symmetric=False), ConfigError, "weights.symmetric is false"),
    ],
)
def test_unknown_schemes_and_groups_are_refused_in_one_line(settings, error, words_, tmp_path):
    packed, _ = write(tmp_path, gptq, settings)
    with pytest.raises(error, match=words_) as raised:
        load_model(packed)
    assert "\n" not in str(raised.value)


@pytest.mark.filterwarnings("ignore::specjax.errors.SpecjaxWarning")
def test_weights_packed_for_mlx_are_refused_by_name(tmp_path):
    save_model(MODEL, tmp_path)
    raw = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(raw | {"quantization": {"group_size": 64, "bits": 4}}))
    with pytest.raises(ConfigError, match="packed for MLX and not read; name the original checkpoint"):
        load_model(tmp_path)


@pytest.mark.parametrize("settings", [{"quant_method": "gptq", "bits": 4}, {"quant_method": "fp8"}])
def test_full_weights_that_config_json_calls_packed_are_refused(settings, tmp_path):
    _, full = write(tmp_path, *FORMATS["gptq"][:2])
    config = full / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"quantization_config": settings}))
    with pytest.raises(CheckpointError, match=f"quant_method is '{settings['quant_method']}', and no weight is packed"):
        load_model(full)


@pytest.mark.parametrize("part", ["qzeros", "scales", "qweight"])
def test_a_missing_part_is_named(part, tmp_path):
    drop = lambda tensors: {name: x for name, x in tensors.items() if f"down_proj.{part}" not in name}
    packed, _ = write(tmp_path, *FORMATS["gptq"][:2], change=drop)
    with pytest.raises(SpecjaxError, match="down_proj"):
        load_model(packed)
