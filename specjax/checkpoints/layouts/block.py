"""Block heads as the authors of DFlash, DFlash 2, JetSpec, DSpark and XPress write them.

DFlash, DFlash 2 and JetSpec keep their options in ``dflash_config``, DSpark (DeepSpec) at the top
level. XPress keeps those of its refiner at the top level.
``target_layer_ids`` name the layers whose *outputs* the head reads. ``taps`` name the layers whose
inputs it reads, so they are larger by one. In DFlash a place of the block predicts its own token.
In DeepSpec's heads it predicts the token after it, and the root's place predicts too.
"""

from typing import Any

from ...errors import ConfigError
from ...heads.block import BlockConfig
from ...models.config import ModelConfig
from ..blocks import Names
from ..config import to_hf
from ..families import layer_names
from ..json_fields import Field, choice, flag, integer, table
from ..unlisted_options import check_options
from .base import DEPTH, TOKEN, WIDTH, Layout, RawCheckpoint, layer_ids, read_layers, without
from .block_parts import NAMES, PARTS, REFINER_NAMES, SELECTOR_NAMES, has_selector, read_parts, write_parts

LARGEST_BLOCK = 4096
"""The number of places in the largest block that is read."""

BLOCK_SIZE = integer(1, LARGEST_BLOCK)
RANK = integer(0, 1 << 16).optional()
MARKOV_KIND = Field(
    "vanilla, gated or rnn",
    lambda value: isinstance(value, str) and value.lower() in ("vanilla", "gated", "rnn"),
    "vanilla",
    null=True,
    convert=str.lower,
)

_OPTIONS = {
    "mask_token_id", "target_layer_ids", "block_size", "markov_rank", "markov_head_type", "enable_confidence_head",
    "confidence_head_with_markov", "confidence_head_alpha", "num_anchors", "sample_from_anchor",
}  # fmt: skip
_NESTED = (
    _OPTIONS | set(PARTS) | {"causal_head", "causal", "draft_shift", "projector_type", "attention_mode", "mask_token"}
)
_OWN = _OPTIONS | set(PARTS) | {
    "dflash_config", "num_target_layers", "target_hidden_size", "is_causal", "xpress_block_size",
}  # fmt: skip
_FIELDS = {
    "target_layer_ids": layer_ids(),
    "mask_token_id": TOKEN,
    "block_size": BLOCK_SIZE,
    "target_hidden_size": WIDTH,
    "num_target_layers": DEPTH,
    "draft_shift": flag(),
    "causal_head": flag(),
    "causal": flag(),
    "is_causal": flag(None),
    "attention_mode": choice("gqa", "mha").optional(),
    "projector_type": choice("dflash", "dspark").optional(),
}


class DFlashLayout(Layout):
    """DFlash, DFlash 2, JetSpec, DSpark and XPress, in the layout of their authors.

    The tensors are ``fc``, ``hidden_norm``, ``layers.N`` and ``norm``, in DSpark also
    ``markov_head`` and ``confidence_head``, in DFlash 2 ``candidate_selector`` and convolutions in
    the layers, in XPress ``xpress_head``. Embeddings and output matrix are in the file if the head
    has its own.

    Places of a DFlash 2 head see each other as ``is_causal`` says. Without it, layers with an
    attention window are causal, as in serving code.
    """

    name, kind, default = "dflash", "block", True
    refiner = {f"refiner.{path}": [f"xpress_head.{name}"] for path, name in REFINER_NAMES.items()}

    def matches(self, checkpoint: RawCheckpoint) -> bool:
        return (
            "hidden_norm.weight" in checkpoint or "dflash_config" in checkpoint.raw or checkpoint.begins("markov_head.")
        )

    def config(self, checkpoint: RawCheckpoint, target: ModelConfig) -> BlockConfig:
        nested = checkpoint.read(checkpoint.raw, {"dflash_config": table().optional()})["dflash_config"] or {}
        check_options(nested, _NESTED, f"{checkpoint.where}: dflash_config")
        layers = read_layers(checkpoint, without(checkpoint.raw, _OWN), "layers.0")
        options = checkpoint.raw | nested
        anchor = {"sample_from_anchor": flag("dflash_config" not in checkpoint.raw)}
        names_causality = {"is_causal", "causal", "causal_head"} & options.keys()
        parts = read_corrections(checkpoint, options) | read_parts(checkpoint, options)
        options = checkpoint.read(options, _FIELDS | anchor)
        shifted, causal = options["draft_shift"], options["causal_head"] or options["causal"]
        causal = causal if options["is_causal"] is None else options["is_causal"]
        windows = layers.windows if parts.get("conv_taps") and not names_causality else ()
        if shifted and not causal:
            raise ConfigError(
                f"{checkpoint.where}: draft_shift without causal_head is not supported; use a head without it"
            )
        return BlockConfig(
            layers,
            target_size=options["target_hidden_size"] or layers.hidden_size,
            target_layers=options["num_target_layers"] or target.num_layers,
            taps=tuple(i + 1 for i in options["target_layer_ids"]),
            mask_token=options["mask_token_id"],
            block_size=options["block_size"] - shifted,  # a shift leaves the last place of a block unused
            causal=causal,
            causal_windows=any(window is not None for window in windows),
            from_root=shifted or options["sample_from_anchor"],
            own_embedding="embed_tokens.weight" in checkpoint,
            own_head="lm_head.weight" in checkpoint,
            **parts,
        )

    def names(self, config: BlockConfig, checkpoint: RawCheckpoint | None = None) -> Names:
        gate = "joint_proj" if config.markov == "rnn" else "gate_proj"
        table = {
            "fc": ["fc.weight"],
            "hidden_norm": ["hidden_norm.weight"],
            "norm": ["norm.weight"],
            "embed": ["embed_tokens.weight"],
            "head": ["lm_head.weight"],
            "draft_to_target": ["d2t"],
            "markov.first": ["markov_head.markov_w1.weight"],
            "markov.second": ["markov_head.markov_w2.weight"],
            "markov.gate": [f"markov_head.{gate}.weight"],
            "markov.gate_bias": [f"markov_head.{gate}.bias"],
            "confidence": ["confidence_head.proj.weight"],
            "confidence_bias": ["confidence_head.proj.bias"],
        }
        return table | (SELECTOR_NAMES if has_selector(config) else {}) | self.refiner | NAMES | layer_names("layers.N")

    def raw(self, config: BlockConfig) -> dict:
        legacy = config.causal_windows and config.conv_taps > 0
        if config.draft_vocab_size != config.vocab_size or config.causal_windows and not legacy:
            which = "both causal and other layers" if config.causal_windows else "a draft vocabulary"
            raise ConfigError(
                f"the layout {self.name!r} holds no head with {which}; use speculators-dflash or speculators-dspark"
            )
        second = config.conv_taps > 0 or has_selector(config)
        shifted = config.from_root and config.causal and not second
        options = {
            "target_layer_ids": [tap - 1 for tap in config.taps],
            "mask_token_id": config.mask_token,
            **write_corrections(config),
            **(write_parts(config) if second else {}),
        }
        raw = to_hf(config.layers) | {
            "architectures": ["Qwen3DSparkModel" if config.from_root and not shifted else "DFlashDraftModel"],
            "block_size": config.block_size + shifted,
            "target_hidden_size": config.target_size,
            "num_target_layers": config.target_layers,
        }
        if second:
            causality = {} if legacy else {"is_causal": config.causal}
            options |= {"sample_from_anchor": config.from_root}
            return raw | causality | {"architectures": ["DFlash2DraftModel"], "dflash_config": options}
        if config.refiner_rank:
            raw |= write_parts(config) | {"architectures": ["Qwen3XPressModel"], "xpress_block_size": config.block_size}
        if config.from_root and not shifted:
            return raw | options | {"sample_from_anchor": True}
        return raw | {"dflash_config": options | {"causal_head": config.causal, "draft_shift": shifted}}


def read_corrections(checkpoint: RawCheckpoint, options: dict) -> dict[str, Any]:
    """The fields of ``BlockConfig`` for Markov and confidence heads."""
    rank, kind = checkpoint.read(options, {"markov_rank": RANK, "markov_head_type": MARKOV_KIND}).values()
    rank = rank or 0
    with_tensor = flag("confidence_head.proj.weight" in checkpoint)
    fields = {"enable_confidence_head": with_tensor, "confidence_head_with_markov": flag(rank > 0)}
    confidence, with_markov = checkpoint.read(options, fields).values()
    return {
        "markov_rank": rank,
        "markov": (kind or "vanilla") if rank else "vanilla",
        "confidence": confidence,
        "confidence_markov": confidence and with_markov,
    }


def write_corrections(config: BlockConfig) -> dict[str, Any]:
    """The options of Markov and confidence heads, which ``read_corrections`` reads."""
    rank, kind = (0, "vanilla") if has_selector(config) else (config.markov_rank, config.markov)
    return {
        "markov_rank": rank,
        "markov_head_type": kind,
        "enable_confidence_head": config.confidence,
        "confidence_head_with_markov": config.confidence_markov,
    }
