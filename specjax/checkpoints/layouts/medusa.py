"""Medusa heads as their authors write them. The tensors give the shapes."""

import re

from ...errors import CheckpointError
from ...heads.medusa import MedusaConfig
from ...models.config import ModelConfig
from ..blocks import Names
from .base import DEPTH, DTYPE, Layout, RawCheckpoint

_NAME = re.compile(r"(medusa_head\.)?\d+\.\d+\.(linear\.)?(weight|bias)$")


class MedusaLayout(Layout):
    """Medusa, in the layout of its authors.

    ``{k}.{j}.linear`` is block j of head k, and ``{k}.{n}`` is the output matrix of a head with n
    blocks. The tensors are in medusa_lm_head.pt, or under ``medusa_head.`` in a language model's
    checkpoint.
    """

    name, kind, default, file = "medusa", "medusa", True, "medusa_lm_head.safetensors"

    def matches(self, checkpoint: RawCheckpoint) -> bool:
        return any(_NAME.match(name) for name in checkpoint.tensors)

    def config(self, checkpoint: RawCheckpoint, target: ModelConfig) -> MedusaConfig:
        places = [name.removeprefix("medusa_head.").split(".") for name in checkpoint.tensors if _NAME.match(name)]
        count = len({j for _, j, part, *_ in places if part == "linear"})
        return MedusaConfig(
            **read_sizes(checkpoint, f"{_prefix(checkpoint)}0.{count}.weight", target),
            num_heads=len({k for k, *_ in places}),  # 5 in the published heads, whose config.json says 2
            num_layers=count,
        )

    def names(self, config: MedusaConfig, checkpoint: RawCheckpoint | None = None) -> Names:
        prefix = "" if checkpoint is None else _prefix(checkpoint)
        return {
            "heads.N.blocks.N.linear": [f"{prefix}N.M.linear.weight"],
            "heads.N.blocks.N.linear_bias": [f"{prefix}N.M.linear.bias"],
            "heads.N.head": [f"{prefix}N.{config.num_layers}.weight"],
        }

    def raw(self, config: MedusaConfig) -> dict:
        return write_sizes(config)

    def owns(self, name: str, config: MedusaConfig, checkpoint: RawCheckpoint) -> bool:
        return name.startswith(_prefix(checkpoint))


def read_sizes(checkpoint: RawCheckpoint, output: str, target: ModelConfig) -> dict:
    """The sizes of the target and the dtype of weights.

    Args:
      output: the name of the first head's output matrix, of shape [vocabulary, width].
      target: gives the number of layers and the dtype where config.json has none.

    Raises CheckpointError where the output matrix is missing.
    """
    if output not in checkpoint or len(checkpoint.shape(output)) != 2:
        raise CheckpointError(f"{checkpoint.where}: {output} is missing or no matrix; the checkpoint is not whole")
    vocab_size, width = checkpoint.shape(output)
    options = checkpoint.read(checkpoint.raw, {"dtype": DTYPE, "torch_dtype": DTYPE, "num_target_layers": DEPTH})
    return {
        "target_size": width,
        "target_layers": options["num_target_layers"] or target.num_layers,
        "vocab_size": vocab_size,
        "dtype": options["dtype"] or options["torch_dtype"] or target.dtype,
    }


def write_sizes(config: MedusaConfig) -> dict:
    """The config.json of Medusa or Hydra heads."""
    return {
        "model_type": config.kind,
        f"{config.kind}_num_heads": config.num_heads,
        f"{config.kind}_num_layers": config.num_layers,
        "hidden_size": config.target_size,
        "vocab_size": config.vocab_size,
        "num_target_layers": config.target_layers,
        "dtype": config.dtype,
    }


def _prefix(checkpoint: RawCheckpoint) -> str:
    return "medusa_head." if checkpoint.begins("medusa_head.") else ""
