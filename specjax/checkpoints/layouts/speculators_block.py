"""Block heads as speculators 0.9 writes them: DFlash, DSpark, DFlash 2 and XPress."""

import numpy as np

from ...errors import ConfigError
from ...heads.block import BlockConfig, BlockHead
from ...models.config import ModelConfig
from ..config import to_hf
from ..json_fields import flag, integer
from .base import DEPTH, TOKEN, TOKENS, WIDTH, RawCheckpoint, layer_ids, read_layers
from .block import BLOCK_SIZE, DFlashLayout, read_corrections, write_corrections
from .block_parts import CONVOLUTIONS, SELECTOR, has_selector, read_parts, write_parts
from .draft_vocabulary import add_marks, check_offsets
from .speculators import Speculators

REFINER_NAMES = {
    "first": "token_embed.weight", "own": "down_h.weight", "mean": "down_g.weight", "join": "in_proj.weight",
    "mix": "mix_l", "gate": "mlp_gate.weight", "up": "mlp_up.weight", "down": "mlp_down.weight",
    "second": "readout.weight",
}  # fmt: skip
"""The tensors of a refiner."""


def parts_of(config: BlockConfig) -> frozenset[str]:
    """The parts that a head has in addition to those of DFlash, in words."""
    parts = {
        "a Markov head": config.markov_rank > 0 and not has_selector(config),
        "a confidence head": config.confidence,
        "a path selector": has_selector(config),
        "convolutions": config.conv_taps > 0,
        "a refiner": config.refiner_rank > 0,
    }
    return frozenset(name for name, present in parts.items() if present)


def name_parts(parts: frozenset[str]) -> str:
    return " and ".join(sorted(parts)) or "no further parts"


class SpeculatorsDFlash(Speculators, DFlashLayout):
    """DFlash.

    The tensors are ``fc``, ``hidden_norm``, ``layers.N`` and ``norm``; with a draft vocabulary also
    ``lm_head``, ``d2t`` and ``t2d``.

    A layer with an attention window is causal within a block, unless ``sliding_window_non_causal``
    is set. A layer without a window is never causal within a block. A node's window ends at the
    node, as in serving code. The package itself trains with windows that end at the root.

    Attributes:
      from_root, non_causal: the defaults of ``sample_from_anchor`` and
        ``sliding_window_non_causal``.
      parts: what its heads have in addition, see ``parts_of``. DSpark's may lack the confidence.
    """

    name, type, architecture = "speculators-dflash", "dflash", "DFlashDraftModel"
    from_root, non_causal, parts = False, False, frozenset()
    options = frozenset({
        "block_size", "aux_hidden_state_layer_ids", "sliding_window_non_causal", "sample_from_anchor",
        "embed_requires_grad",
    })  # fmt: skip
    refiner = {f"refiner.{path}": [f"refiner_head.{name}"] for path, name in REFINER_NAMES.items()}

    def config(self, checkpoint: RawCheckpoint, target: ModelConfig) -> BlockConfig:
        layers = read_layers(checkpoint, self.layer_config(checkpoint), "layers.0")
        fields = {
            "aux_hidden_state_layer_ids": layer_ids(),
            "mask_token_id": TOKEN,
            "block_size": BLOCK_SIZE.otherwise(8),
            "draft_vocab_size": TOKENS,
            "target_hidden_size": WIDTH,
            "num_target_layers": DEPTH,
            "sliding_window_non_causal": flag(self.non_causal),
            "sample_from_anchor": flag(self.from_root),
        }
        options = checkpoint.read(checkpoint.raw, fields)
        windowed = [window is not None for window in layers.windows or (None,)]
        causal = any(windowed) and not options["sliding_window_non_causal"]
        return BlockConfig(
            layers,
            target_size=options["target_hidden_size"] or layers.hidden_size,
            target_layers=options["num_target_layers"] or target.num_layers,
            taps=tuple(options["aux_hidden_state_layer_ids"]),
            mask_token=options["mask_token_id"],
            block_size=options["block_size"],
            causal=causal and all(windowed),
            causal_windows=causal and not all(windowed),
            from_root=options["sample_from_anchor"],
            own_embedding="embed_tokens.weight" in checkpoint,
            own_head="lm_head.weight" in checkpoint,
            draft_vocab_size=options["draft_vocab_size"],
            **self.corrections(checkpoint),
        )

    def corrections(self, checkpoint: RawCheckpoint) -> dict:
        """The fields of ``BlockConfig`` for the parts that the type adds."""
        return {}

    def raw(self, config: BlockConfig) -> dict:
        self.check_qwen3(config)
        windowed = [window is not None for window in config.layers.windows or (None,)]
        if config.causal and not all(windowed):
            raise ConfigError(f"the layout {self.name!r} holds causal layers only with attention windows; use dflash")
        parts = parts_of(config)
        if not self.parts - {"a confidence head"} <= parts <= self.parts:
            raise ConfigError(
                f"the layout {self.name!r} holds heads with {name_parts(self.parts)}, and this one has "
                f"{name_parts(parts)}; use dflash"
            )
        return self.envelope(to_hf(config.layers), config.drafts) | {
            "aux_hidden_state_layer_ids": list(config.taps),
            "block_size": config.block_size,
            "draft_vocab_size": config.draft_vocab_size,
            "mask_token_id": config.mask_token,
            "num_target_layers": config.target_layers,
            "sample_from_anchor": config.from_root,
            "sliding_window_non_causal": any(windowed) and not (config.causal or config.causal_windows),
            "target_hidden_size": config.target_size,
        }

    def check_values(self, module: BlockHead, checkpoint: RawCheckpoint) -> None:
        if module.draft_to_target is not None:
            check_offsets(np.asarray(module.draft_to_target[...]), module.config.vocab_size, checkpoint)

    def complete(self, tensors: dict[str, np.ndarray], config: BlockConfig) -> dict[str, np.ndarray]:
        return add_marks(tensors, config.vocab_size)


class SpeculatorsDSpark(SpeculatorsDFlash):
    """DSpark: DFlash with ``markov_head`` and ``confidence_head``.

    A place of the block predicts the token after it.
    """

    name, type, architecture, from_root = "speculators-dspark", "dspark", "DSparkDraftModel", True
    parts = frozenset({"a Markov head", "a confidence head"})
    options = SpeculatorsDFlash.options | {
        "markov_rank", "markov_head_type", "enable_confidence_head", "confidence_head_with_markov",
    }  # fmt: skip

    def corrections(self, checkpoint: RawCheckpoint) -> dict:
        return read_corrections(checkpoint, {"markov_rank": 256, "enable_confidence_head": True} | checkpoint.raw)

    def raw(self, config: BlockConfig) -> dict:
        return super().raw(config) | write_corrections(config)


class SpeculatorsDFlash2(SpeculatorsDFlash):
    """DFlash 2: DFlash with convolutions in the layers, and ``candidate_selector``."""

    name, type, architecture, non_causal = "speculators-dflash2", "dflash2", "DFlash2DraftModel", True
    parts = frozenset({"convolutions", "a path selector"})
    options = SpeculatorsDFlash.options | CONVOLUTIONS.keys() | SELECTOR.keys()

    def corrections(self, checkpoint: RawCheckpoint) -> dict:
        defaults = {"conv_kernel_size": 2, "conv_group_size": 16, "selector_rank": 256, "selector_top_k": 16}
        return read_parts(checkpoint, defaults | checkpoint.raw)

    def raw(self, config: BlockConfig) -> dict:
        return super().raw(config) | write_parts(config)


class SpeculatorsXPress(SpeculatorsDFlash):
    """XPress: DFlash with ``refiner_head``."""

    name, type, architecture = "speculators-xpress", "xpress", "XPressSpeculator"
    parts = frozenset({"a refiner"})
    options = SpeculatorsDFlash.options | {"xpress_rank", "xpress_mlp_ratio", "num_jacobi_passes"}

    def corrections(self, checkpoint: RawCheckpoint) -> dict:
        size, passes = integer(1, 1 << 16), integer(0, 4096)
        fields = {"xpress_rank": size.otherwise(256), "xpress_mlp_ratio": size.otherwise(2)}
        rank, ratio, passes = checkpoint.read(
            checkpoint.raw, fields | {"num_jacobi_passes": passes.otherwise(6)}
        ).values()
        return {"refiner_rank": rank, "refiner_size": ratio * rank, "refiner_passes": passes}

    def raw(self, config: BlockConfig) -> dict:
        if config.refiner_size % max(config.refiner_rank, 1):
            raise ConfigError(
                f"the layout {self.name!r} holds refiners whose width is a multiple of their rank "
                f"{config.refiner_rank}, not {config.refiner_size}; use dflash"
            )
        return super().raw(config) | {
            "xpress_rank": config.refiner_rank,
            "xpress_mlp_ratio": config.refiner_size // max(config.refiner_rank, 1),
            "num_jacobi_passes": config.refiner_passes,
        }
