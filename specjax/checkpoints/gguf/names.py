"""The tensors of a GGUF file under the names, and in the forms, of a Hugging Face checkpoint."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ...errors import CheckpointError
from ..blocks import name_of
from ..config import from_hf
from ..families import FAMILIES
from .architectures import ARCHITECTURES
from .configs import architecture, read_gguf_config
from .metadata import Metadata
from .packed import Joined, KeysAndValues, Mapped, PackedTensor, Reordered, Transposed, WithAxis
from .reader import GgufFile
from .state_spaces import turn_back

_NOT_READ = re.compile(r"rope_freqs\.weight|rope_factors_(short|long)\.weight|.*\.(attn_rot_embd|rope_freqs)\.weight")
"""Tensors that follow from the configuration, which has them."""

_STACK = re.compile(r"(.*\.experts\.(?:gate|up|down))(_bias)?")
_LOOKED_UP = {
    "e_score_correction_bias": "e_score_correction.bias", ".dt_bias": ".dt_proj.bias", ".sinks": ".sinks.weight",
    ".layer_scalar": ".layer_scalar.weight",
}  # fmt: skip
"""Names that the conversion changes before it looks them up."""

_KEYS = re.compile(r"(?P<layer>.*)\.attn_k_b\.weight")
_DELTA_RULE = re.compile(r"(?P<layer>.*)\.attn_(?P<part>qkv|gate)\.weight")
_LAYER = re.compile(r"blk\.(\d+)\.")


def open_tensors_of(file: GgufFile) -> dict[str, Any]:
    """The tensors of the language model, which are read by slices.

    They have the names of the family. The matrices of all experts of a layer are one stack, see
    ``experts.stack_name``. A tensor that the family does not have keeps its own name.

    Raises ConfigError as ``config.from_hf`` does, and CheckpointError for a tensor whose shape the
    metadata exclude.
    """
    config = read_gguf_config(file)
    from_hf(config, str(file.path))  # refuses sizes that do not fit one another
    renamed = _names(file, config)
    layers = _layers(config)
    tensors = {}
    for name, tensor in _whole(file, config):
        number = _LAYER.match(name)
        if _NOT_READ.fullmatch(name) or number and int(number[1]) >= layers:
            continue  # the layers beyond the last are those of multi-token prediction
        try:
            tensors[renamed.get(name, name)] = _turned_back(name, tensor, architecture(file), config)
        except ValueError:
            shape = tuple(tensor.get_shape())
            raise CheckpointError(
                f"{file.path}: {name} has shape {shape}, which the metadata exclude; download the file again"
            ) from None
    return tensors | _activations(file)


def _activations(file: GgufFile) -> dict[str, Any]:
    """The parameters of xIELU, which stand in the metadata."""
    keys = Metadata(file, "xielu")
    return {
        f"model.layers.{i}.mlp.act_fn.{name}": PackedTensor("F32", [1], np.array([value], np.float32))
        for name in ("alpha_p", "alpha_n")
        for i, value in enumerate(keys.per_layer(name))
    }


def _layers(config: Mapping[str, Any]) -> int:
    """The number of layers. The encoder and the decoder of T5 may have different ones."""
    family = FAMILIES[config["model_type"]]
    own = config[family.renamed.get("num_hidden_layers", "num_hidden_layers")]
    return max(own, config.get("num_decoder_layers", 0))


def _heads(config: Mapping[str, Any]) -> int:
    family = FAMILIES[config["model_type"]]
    return config[family.renamed.get("num_attention_heads", "num_attention_heads")]


def _names(file: GgufFile, config: Mapping[str, Any]) -> dict[str, str]:
    """The family's name of each tensor, by its name in the file.

    The package maps names of many families to those of files. Here it maps those of one family,
    and the result is turned around.
    """
    from gguf import MODEL_ARCH_NAMES, get_tensor_name_map  # here, because it is an extra

    name = architecture(file)
    number = next(number for number, other in MODEL_ARCH_NAMES.items() if other == name)
    layers = _layers(config)
    known = get_tensor_name_map(number, layers)
    renamed = {}
    absent = {path for option, paths in _ABSENT.items() for path in paths.get(config.get(option), ())}
    for path, listed in FAMILIES[config["model_type"]].names.items():
        if path.removesuffix("_bias") in absent:
            continue
        for i in range(layers) if ".N." in path else [0]:
            theirs = [re.sub(r"\bN\b", str(i), name_of(entry)) for entry in listed]
            ours = [(_name(known, module), end) for module, end in map(_in_package, theirs)]
            if all(module for module, _ in ours):  # else the parameter is not one of this architecture
                renamed |= {f"{module}.{end}" if end else module: full for (module, end), full in zip(ours, theirs)}
    return renamed


_ABSENT = {
    "num_ln_in_parallel_attn": {1: ("layers.N.mixer_norm", "layers.N.mlp_norm"), 2: ("layers.N.norm",)},
    "feed_forward_proj": {
        "relu": ("layers.N.mlp.gate_up", "encoder.layers.N.mlp.gate_up"),
        "gated-gelu": ("layers.N.mlp.up", "encoder.layers.N.mlp.up"),
    },
}
"""The parameters that Falcon and T5 lack, by an option. In a file others have their names."""


def _name(known: Any, module: str) -> str | None:
    """The name of a module in a file. The conversion of BLOOM drops the prefix before it looks."""
    return known.get_name(module) or known.get_name(module.removeprefix("transformer."))


def _in_package(name: str) -> tuple[str, str]:
    """A name as llama.cpp's conversion looks it up: the module, and what follows it in a file."""
    if stack := _STACK.fullmatch(name):
        return f"{stack[1]}_proj", "bias" if stack[2] else "weight"
    for theirs, looked_up in _LOOKED_UP.items():
        name = name.replace(theirs, looked_up)
    module, _, end = name.rpartition(".")
    return (module, end) if end in ("weight", "bias") else (name, "")


def _whole(file: GgufFile, config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The tensors, of which a checkpoint has some in one piece and others in several.

    DeepSeek's keys and values become one matrix. ChatGLM's queries, keys and values become three.
    The projections of Qwen3-Next's delta rule become one matrix.
    """
    tensors = file.tensors
    for name, tensor in tensors.items():
        if architecture(file) == "chatglm" and ".attn_qkv." in name:
            rows = np.arange(tensor.get_shape()[0])
            keys = len(rows) * config["num_key_value_heads"] // (_heads(config) + 2 * config["num_key_value_heads"])
            parts = np.split(rows, (len(rows) - 2 * keys, len(rows) - keys))
            yield from ((name.replace("qkv", part), Reordered(tensor, own)) for part, own in zip("qkv", parts))
            continue
        if match := _KEYS.fullmatch(name):
            values = tensors.get(f"{match['layer']}.attn_v_b.weight")
            if values is not None:
                yield f"{match['layer']}.attn_kv_b.weight", KeysAndValues(tensor, values)
                continue
        if architecture(file) == "qwen3next" and (match := _DELTA_RULE.fullmatch(name)):
            qkv, gate = (tensors.get(f"{match['layer']}.attn_{part}.weight") for part in ("qkv", "gate"))
            if qkv is not None and gate is not None:
                if match["part"] == "qkv":
                    yield f"{match['layer']}.ssm_in.weight", Joined(qkv, gate)
                continue
        if not name.endswith(".attn_v_b.weight"):
            yield name, tensor


def _turned_back(name: str, tensor: Any, kind: str, config: Mapping[str, Any]) -> Any:
    """The tensor before the conversion of llama.cpp changed it."""
    module, _, end = name.rpartition(".")
    last = module.rpartition(".")[2]
    if ARCHITECTURES[kind].pairs and last in ("attn_q", "attn_k"):
        heads = _heads(config) if last == "attn_q" else config["num_key_value_heads"]
        return Reordered(tensor, _halves(tensor.get_shape()[0], heads))
    if ARCHITECTURES[kind].norm_offset and module.endswith("norm") and last != "ssm_norm":
        return Mapped(tensor, lambda x: x - np.float32(ARCHITECTURES[kind].norm_offset))
    if kind.startswith("qwen35") and (name.endswith(".ssm_a") or last in _OF_VALUES):
        return _delta_rule(last if end in ("weight", "bias") else end, tensor, config)
    if kind in ("gptneox", "bloom", "falcon") and last == "attn_qkv":
        heads = _heads(config)
        return Reordered(tensor, _by_heads(tensor.get_shape()[0], heads, config.get("num_kv_heads", heads)))
    if isinstance(tensor, Joined):
        return Reordered(tensor, _by_key_heads(tensor.get_shape()[0], config))
    if kind in ("mamba2", "nemotron_h") or kind == "qwen3next" and "ssm_" in name:
        return turn_back(name, tensor)
    if last == "exp_probs_b" and kind == "ernie4_5-moe" or kind == "lfm2" and last == "conv" and end == "weight":
        return WithAxis(tensor, 1 if kind == "lfm2" else 0)
    if kind == "gpt2" and end == "weight" and last in ("attn_qkv", "attn_output", "ffn_up", "ffn_down"):
        return Transposed(tensor)
    if last == "ffn_gate_inp_shexp" and len(tensor.get_shape()) == 1:
        return WithAxis(tensor, 0)
    return tensor


def _halves(rows: int, heads: int) -> np.ndarray:
    """The row in the file of each row of queries: the file pairs neighbours, checkpoints halves."""
    return np.arange(rows).reshape(heads, -1, 2).swapaxes(1, 2).ravel()


def _by_heads(rows: int, heads: int, keys: int) -> np.ndarray:
    """The row in the file of each row of q, k and v. A checkpoint has them by key heads."""
    size = rows // (heads + 2 * keys)
    parts = np.split(np.arange(rows), (heads * size, (heads + keys) * size))
    return np.hstack([part.reshape(keys, -1) for part in parts]).ravel()


def _by_key_heads(rows: int, config: Mapping[str, Any]) -> np.ndarray:
    """The row in the file of each row of q, k, v and z. A checkpoint has them by key heads."""
    heads = config["linear_num_key_heads"]
    keys = heads * config["linear_key_head_dim"]
    parts = np.split(np.arange(rows), (keys, 2 * keys, keys + rows // 2))
    return np.hstack([part.reshape(heads, -1) for part in parts]).ravel()


_OF_VALUES = ("attn_qkv", "attn_gate", "ssm_conv1d", "ssm_out", "ssm_alpha", "ssm_beta", "ssm_dt")
"""Tensors of Qwen3.5 with rows or columns for heads of values, beside the rates ``ssm_a``."""


def _delta_rule(kind: str, tensor: Any, config: Mapping[str, Any]) -> Any:
    """A tensor of the gated delta rule before the conversion.

    Each head of keys has several heads of values. A checkpoint has them together. A file has the
    first one of each head of keys, then the second ones. It has rates as -exp(A_log).
    """
    keys, values = config["linear_num_key_heads"], config["linear_num_value_heads"]
    size = 1 if kind in ("ssm_a", "ssm_alpha", "ssm_beta", "ssm_dt") else config["linear_value_head_dim"]
    order = np.arange(values * size).reshape(values // keys, keys, size).swapaxes(0, 1).ravel()
    if kind == "ssm_out":
        return Transposed(Reordered(Transposed(tensor), order))
    if kind in ("attn_qkv", "ssm_conv1d"):  # rows of queries and keys come first
        first = 2 * keys * config["linear_key_head_dim"]
        order = np.concatenate([np.arange(first), first + order])
    if kind == "ssm_a":
        tensor = Mapped(tensor, lambda x: np.log(-x))
    return WithAxis(Reordered(tensor, order), 1) if kind == "ssm_conv1d" else Reordered(tensor, order)
