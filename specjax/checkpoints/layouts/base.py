"""What a layout is: how one project writes one kind of head."""

import dataclasses
from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from flax import nnx

from ...errors import ConfigError
from ...models.config import ModelConfig
from ..config import from_hf


@dataclasses.dataclass(frozen=True, eq=False)
class Found:
    """A checkpoint that is looked at.

    Attributes:
      raw: its config.json.
      tensors: its tensors, see ``models.load.open_tensors``.
      where: its place, for messages.
    """

    raw: dict
    tensors: dict
    where: str

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.tensors[name].get_shape())

    def begins(self, *prefixes: str) -> bool:
        """Whether the name of any tensor begins so."""
        return any(name.startswith(prefixes) for name in self.tensors)

    @property
    def language_model(self) -> bool:
        """Whether it holds a language model, by itself or with heads in it."""
        return self.begins("model.layers.0.", "model.embed_tokens.")

    def architecture(self, part: str) -> bool:
        return any(part in str(name) for name in self.raw.get("architectures") or ())

    def need(self, options: dict, key: str):
        """``options[key]``; raises ConfigError where it is missing."""
        if options.get(key) is None:
            raise ConfigError(f"{self.where}: option {key!r} is missing from config.json")
        return options[key]


class Layout(ABC):
    """How one project writes one kind of head.

    Attributes:
      name: what ``save_head`` calls it.
      kind: of the heads, see ``heads.base.HeadConfig``.
      module: their class.
      file: what their weights are written to.
    """

    name: str
    kind: str
    module: type[nnx.Module]
    file: str = "model.safetensors"

    @abstractmethod
    def matches(self, found: Found) -> bool:
        """Whether the checkpoint is of this layout."""

    @abstractmethod
    def config(self, found: Found, target: ModelConfig) -> Any:
        """The head's configuration. Raises ConfigError for what is not supported; whether it fits the target is checked elsewhere."""

    @abstractmethod
    def names(self, config, found: Found | None = None) -> dict[str, list[str]]:
        """The module's paths and the tensors they are made of, see ``families.blocks``; in a checkpoint that is read, or one to be written."""

    @abstractmethod
    def raw(self, config) -> dict:
        """What is written as config.json: it holds all that ``config`` reads."""

    def owns(self, name: str, config, found: Found) -> bool:
        """Whether a tensor is part of the head and is read: neither the language model's around it, nor derived from others."""
        return True

    def checked(self, module: nnx.Module, found: Found) -> None:  # noqa: B027 - most layouts have nothing to check
        """Raises CheckpointError where the values that were read cannot be."""

    def finished(self, tensors: dict[str, np.ndarray], config) -> dict[str, np.ndarray]:
        """The tensors that are written, with those that are derived from others."""
        return tensors


def layers_of(found: Found, raw: dict, first: str) -> ModelConfig:
    """The decoder layers that ``raw`` describes, of which the ``first`` is called so."""
    return from_hf(raw, found.where).replace(tie_embeddings=False, **layer_options(found, first))


def layer_options(found: Found, first: str) -> dict[str, bool]:
    """Which biases and norms decoder layers have, by the tensors of the ``first``: configurations of heads are copied from targets and
    often say it wrongly."""
    return {
        "qkv_bias": f"{first}.self_attn.q_proj.bias" in found,
        "out_bias": f"{first}.self_attn.o_proj.bias" in found,
        "mlp_bias": f"{first}.mlp.gate_proj.bias" in found,
        "qk_norm": f"{first}.self_attn.q_norm.weight" in found,
    }


def without(raw: dict, keys) -> dict:
    """The options that are not among ``keys``."""
    return {key: value for key, value in raw.items() if key not in keys}
