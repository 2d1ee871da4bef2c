"""The base class of layouts. A layout is the way in which one project writes one kind of head."""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import Any

import numpy as np
from flax import nnx

from ...errors import ConfigError
from ...heads import HeadConfig
from ...models.config import ModelConfig
from ..blocks import Names
from ..config import from_hf
from ..json_fields import Field, integer, read_fields

WIDTH = integer(1, 1 << 20).optional()
DEPTH = integer(1, 1000).optional()
TOKENS = integer(1, 1 << 24).optional()
TOKEN = integer(0, 2**31 - 1)
"""Fields for a width, a number of layers, a size of a vocabulary and a token."""

DTYPE = Field(
    "float32, bfloat16 or float16",
    lambda value: isinstance(value, str) and value.removeprefix("torch.") in ("float32", "bfloat16", "float16"),
    None,
    null=True,
    convert=lambda value: value.removeprefix("torch."),
)
"""A field for the dtype of weights, as all versions of transformers write it."""

MOST_LAYERS = 128
"""Decoder layers of the deepest head that is read."""


def layer_ids(least: int = 0) -> Field:
    """A field for a list of one or more layers of the target."""
    accept = lambda value: isinstance(value, list) and all(type(x) is int and least <= x <= 1000 for x in value)
    return Field(
        f"a list of one or more whole numbers from {least} to 1000", lambda value: accept(value) and value != []
    )


_LANGUAGE_MODELS = (
    "model.layers.0.", "model.embed_tokens.", "model.language_model.", "transformer.h.0.", "h.0.", "gpt_neox.layers.0.",
    "model.decoder.layers.0.", "decoder.layers.0.", "decoder.block.0.",
)  # fmt: skip
"""How the tensors of language models begin, and those of heads do not."""


@dataclasses.dataclass(frozen=True, eq=False)
class RawCheckpoint:
    """A checkpoint whose layout is not known yet.

    Attributes:
      raw: its config.json.
      tensors: its tensors, see ``tensors.open_tensors``.
      where: its directory, for messages.
    """

    raw: dict
    tensors: dict
    where: str

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.tensors[name].get_shape())

    def begins(self, *prefixes: str) -> bool:
        """Whether the name of any tensor begins with one of the prefixes."""
        return any(name.startswith(prefixes) for name in self.tensors)

    @property
    def language_model(self) -> bool:
        """Whether the checkpoint holds a language model, with or without heads beside it."""
        return self.begins(*_LANGUAGE_MODELS)

    @property
    def architectures(self) -> list[str]:
        names = self.raw.get("architectures")
        return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []

    def architecture(self, part: str) -> bool:
        """Whether the name of any architecture in config.json contains ``part``."""
        return any(part in name for name in self.architectures)

    def read(self, options: dict, fields: dict[str, Field], within: str = "") -> dict[str, Any]:
        """The values of fields of config.json, see ``json_fields.read_fields``."""
        return read_fields(options, fields, f"{self.where}: config.json", within)


class Layout(ABC):
    """The way in which one project writes one kind of head.

    Attributes:
      name: the name of the layout, for ``save_head``.
      kind: the kind of its heads, see ``heads.KINDS``.
      default: whether heads of this kind are saved in this layout by default; see ``is_default``.
      file: the file that gets the weights.
    """

    name: str
    kind: str
    default: bool = False
    file: str = "model.safetensors"

    def is_default(self, config: HeadConfig) -> bool:
        """Whether a head of this configuration is saved in this layout by default."""
        return self.default

    @abstractmethod
    def matches(self, checkpoint: RawCheckpoint) -> bool:
        """Whether the checkpoint is of this layout."""

    @abstractmethod
    def config(self, checkpoint: RawCheckpoint, target: ModelConfig) -> HeadConfig:
        """The head's configuration. Whether it fits the target is checked elsewhere.

        Raises ConfigError, which names an unsupported option or a field with a bad value.
        """

    @abstractmethod
    def names(self, config, checkpoint: RawCheckpoint | None = None) -> Names:
        """The tensors of each parameter of the module, by its path; see ``families.blocks``.

        ``checkpoint``: the checkpoint to read; None to write a checkpoint.
        """

    @abstractmethod
    def raw(self, config) -> dict:
        """The config.json of a head. The method ``config`` reads the same configuration from it.

        Raises ConfigError for a head that the layout cannot hold.
        """

    def owns(self, name: str, config, checkpoint: RawCheckpoint) -> bool:
        """Whether a tensor of the checkpoint belongs to the head.

        Tensors of a language model around the head do not. Nor do tensors that follow from others.
        """
        return True

    def check_values(self, module: nnx.Module, checkpoint: RawCheckpoint) -> None:  # noqa: B027 - few layouts need it
        """Raises CheckpointError for values of tensors that no head can have."""

    def stack(self, tensors: dict[str, Any], config, where: str) -> dict[str, Any]:
        """The head's tensors, with the experts' tensors stacked, see ``checkpoints.experts``."""
        return tensors

    def complete(self, tensors: dict[str, np.ndarray], config) -> dict[str, np.ndarray]:
        """The tensors to write, together with the tensors that follow from them."""
        return tensors


def read_layers(checkpoint: RawCheckpoint, raw: dict, first: str, others: Collection[str] = ()) -> ModelConfig:
    """The decoder layers that ``raw`` describes.

    Args:
      first: the prefix of the first layer's tensors; see ``layer_options``.
      others: families of the layout whose layers are not Llama's.
    """
    layers = from_hf(raw, checkpoint.where).replace(tie_embeddings=False, **layer_options(checkpoint, first))
    if not layers.is_llama_like and layers.family not in others:
        raise ConfigError(f"{checkpoint.where}: model_type is {layers.family}; layers of a head must be Llama's")
    if layers.num_layers > MOST_LAYERS:
        raise ConfigError(
            f"{checkpoint.where}: num_hidden_layers is {layers.num_layers}; a head has at most {MOST_LAYERS} layers"
        )
    return layers


def layer_options(checkpoint: RawCheckpoint, first: str) -> dict[str, bool]:
    """Whether decoder layers have biases and norms: whether the first layer has their tensors.

    Configurations of heads are copied from targets and are often wrong about them. The names of the
    first layer's tensors begin with ``first``.
    """
    return {
        "qkv_bias": f"{first}.self_attn.q_proj.bias" in checkpoint,
        "out_bias": f"{first}.self_attn.o_proj.bias" in checkpoint,
        "mlp_bias": f"{first}.mlp.gate_proj.bias" in checkpoint,
        "qk_norm": f"{first}.self_attn.q_norm.weight" in checkpoint,
    }


def without(raw: dict, keys) -> dict:
    """The options that are not among ``keys``."""
    return {key: value for key, value in raw.items() if key not in keys}
