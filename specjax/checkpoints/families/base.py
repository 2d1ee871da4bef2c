"""A family of models: how its config.json is read, what its maths needs, and its tensors' names."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...errors import ConfigError
from ...models.config import ModelConfig
from ..blocks import Names, Tensor, rename
from ..json_fields import Field

LLAMA_LAYER = {
    "mixer_norm": ["input_layernorm.weight"],
    "mixer.qkv": [f"self_attn.{x}_proj.weight" for x in "qkv"],
    "mixer.qkv_bias": [f"self_attn.{x}_proj.bias" for x in "qkv"],
    "mixer.q_norm": ["self_attn.q_norm.weight"],
    "mixer.k_norm": ["self_attn.k_norm.weight"],
    "mixer.out": ["self_attn.o_proj.weight"],
    "mixer.out_bias": ["self_attn.o_proj.bias"],
    "mlp_norm": ["post_attention_layernorm.weight"],
    "mlp.gate_up": ["mlp.gate_proj.weight", "mlp.up_proj.weight"],
    "mlp.gate_up_bias": ["mlp.gate_proj.bias", "mlp.up_proj.bias"],
    "mlp.down": ["mlp.down_proj.weight"],
    "mlp.down_bias": ["mlp.down_proj.bias"],
}
"""The tensors of each parameter of a layer of Llama.

Three tensors are queries, keys and values, and two are the gate and the up projection.
"""

_EXPERTS = {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}
"""The names of the matrices of an expert, as most families have them."""

Windows = tuple[int | None, ...]


def layer_names(prefix: str, layer: Names = LLAMA_LAYER) -> dict[str, list[str | Tensor]]:
    """The tensors of each parameter of decoder layers, whose names begin with ``prefix``.

    N stands for the number of the layer.
    """
    return {f"layers.N.{path}": rename(names, lambda name: f"{prefix}.{name}") for path, names in layer.items()}


def model_names(layer: Names = LLAMA_LAYER) -> dict[str, list[str | Tensor]]:
    """The tensors of each parameter of a model with these layers, and Llama's names around them."""
    tables = {"embed": "model.embed_tokens.weight", "norm": "model.norm.weight", "head": "lm_head.weight"}
    outside: dict[str, list[str | Tensor]] = {path: [name] for path, name in tables.items()}
    return outside | layer_names("model.layers.N", layer)


def with_biases(modules: Mapping[str, str]) -> dict[str, list[str | Tensor]]:
    """The tensors of linear maps and norms: weights as ``path``, biases as ``path_bias``.

    ``modules``: the name of each module in the checkpoint, by the path of its parameter.
    """
    tensors: dict[str, list[str | Tensor]] = {}
    for path, name in modules.items():
        tensors |= {path: [f"{name}.weight"], f"{path}_bias": [f"{name}.bias"]}
    return tensors


@dataclasses.dataclass(frozen=True)
class Family:
    """A family of models.

    Attributes:
      model_type, architecture: its name in config.json, and its class in transformers.
      checkpoints, refused, drafters: the checkpoints that it covers, the options that are refused,
        and the kinds of trained drafters that were published for it, for the documentation.
      options: the options of config.json, with their types, ranges and the defaults of
        transformers. An option that is not listed is refused if it is set. ``schemas`` has the
        groups of options that most families share.
      names: the tensors of each parameter, by its path; see ``blocks.blocks``.
      read: maps the options, and the name of the file for messages, to the fields of
        ``ModelConfig`` that are not Llama's.
      write: maps a configuration to the options that are not Llama's.
      renamed: the family's name of each option that Llama has under another name.
      former: other names of options, which stand for them where a file lacks them.
      theta, rotated: the defaults of rotary positions; ``rotated`` None for a family that rotates
        whole heads only, ``theta`` None for a family whose ``read`` gives the rotary positions.
      harmless: options that do not change the maths.
      is_unused: whether a checkpoint's tensor has no part in a model of this configuration.
      fixed: the numbers that transformers reads from tensors and that are no parameters here, by
        the tensors' names.
      aliases: other names that some checkpoints have for tensors.
      experts: in a family with a tensor for each expert, the module with the experts, and the names
        of its matrices.
    """

    model_type: str
    architecture: str
    checkpoints: str
    options: Mapping[str, Field]
    names: Names
    refused: str = ""
    drafters: str = ""
    read: Callable[[dict[str, Any], str], dict[str, Any]] = lambda options, where: {}
    write: Callable[[ModelConfig], dict[str, Any]] = lambda config: {}
    renamed: Mapping[str, str] = dataclasses.field(default_factory=dict)
    former: Mapping[str, str] = dataclasses.field(default_factory=dict)
    theta: float | None = 10000.0
    rotated: float | None = None
    harmless: frozenset[str] = frozenset()
    is_unused: Callable[[ModelConfig, str], bool] = lambda config, name: False
    fixed: Callable[[ModelConfig], dict[str, float]] = lambda config: {}
    aliases: Mapping[str, str] = dataclasses.field(default_factory=dict)
    experts: tuple[str, Mapping[str, str]] = ("mlp", _EXPERTS)

    @property
    def optional_prefix(self) -> str:
        """The beginning of the tensors' names that a checkpoint of the bare model leaves out.

        It is "model." of "model.embed_tokens.weight", and empty for "shared.weight".
        """
        first, _, rest = str(self.names["embed"][0]).partition(".")
        return f"{first}." if "." in rest else ""


def read_layer_types(options: dict, where: str, default: Sequence[str] = (), needed: str = "") -> Sequence[str]:
    """The kind of each layer; ``default`` holds where the file has no ``layer_types``.

    Raises ConfigError for a list of another length, and for one without the kind ``needed``.
    """
    layers = options["num_hidden_layers"]
    kinds = default if options["layer_types"] is None else options["layer_types"]
    if len(kinds) != layers:
        raise ConfigError(f"{where}: layer_types has {len(kinds)} entries; give one for each of the {layers} layers")
    if needed and needed not in kinds:
        raise ConfigError(f"{where}: layer_types has no {needed}; a layer must have it")
    return kinds


def read_windows(options: dict, where: str, default: Windows) -> Windows:
    """The attention window of each layer in tokens, None for a layer that attends to all tokens.

    ``default`` holds where the file has no ``layer_types``. Raises ConfigError for a list of
    another length, and for windows without a size.
    """
    window = options["sliding_window"]
    if options["layer_types"] is None:
        return default
    kinds = read_layer_types(options, where)
    if "sliding_attention" in kinds and not window:
        raise ConfigError(f"{where}: sliding_window is null; layer_types names sliding_attention, which needs it")
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def every(layers: int, window: int | None, pattern: int) -> Windows:
    """A window in all layers but each ``pattern``-th."""
    return tuple(window if (i + 1) % pattern else None for i in range(layers))


def write_windows(config: ModelConfig) -> dict[str, Any]:
    """The options of a configuration with attention windows in some layers."""
    return {"sliding_window": first_window(config, 4096), "layer_types": layer_types(config)}


def first_window(config: ModelConfig, otherwise: int | None = None) -> int | None:
    """The tokens of the first attention window."""
    return next((window for window in config.windows if window), otherwise)


def layer_types(config: ModelConfig) -> list[str]:
    """The option ``layer_types`` of a configuration."""
    windows = config.windows or (None,) * config.num_layers
    return ["sliding_attention" if window else "full_attention" for window in windows]
