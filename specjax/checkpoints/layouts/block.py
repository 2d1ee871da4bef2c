"""Block heads as published: DFlash, JetSpec, DSpark.

DFlash and JetSpec keep their options in ``dflash_config``, DSpark (DeepSpec) at the top level. ``target_layer_ids`` name layers whose
*outputs* are read; ``taps`` here name inputs and are one more. Where a place's token is said, DeepSpec's heads have a convention of
their own: a place says the token after it, so the root's is used too.
"""

from ...errors import ConfigError
from ...heads.block import MARKOV, BlockConfig, BlockHead
from ...models.config import ModelConfig
from ..config import check_options, to_hf
from ..families import layer_names
from .base import Found, Layout, layers_of, without

_OPTIONS = {
    "mask_token_id", "target_layer_ids", "block_size", "markov_rank", "markov_head_type", "enable_confidence_head", "confidence_head_with_markov",
    "confidence_head_alpha", "num_anchors", "sample_from_anchor",
}  # fmt: skip
_NESTED = _OPTIONS | {"causal_head", "causal", "draft_shift", "projector_type", "attention_mode", "mask_token"}
_OWN = _OPTIONS | {"dflash_config", "num_target_layers", "target_hidden_size"}


class DFlash(Layout):
    """``fc``, ``hidden_norm``, ``layers.N``, ``norm``; ``markov_head`` and ``confidence_head`` of DSpark; embeddings and head if own."""

    name, kind, module = "dflash", "block", BlockHead

    def matches(self, found: Found) -> bool:
        return "hidden_norm.weight" in found or "dflash_config" in found.raw or found.begins("markov_head.")

    def config(self, found: Found, target: ModelConfig) -> BlockConfig:
        raw, nested = found.raw, found.raw.get("dflash_config") or {}
        check_options(nested, _NESTED, f"{found.where}: dflash_config")
        layers, options = layers_of(found, without(raw, _OWN), "layers.0"), raw | nested
        rank, shifted = int(options.get("markov_rank") or 0), bool(options.get("draft_shift"))
        causal = bool(options.get("causal_head") or options.get("causal"))
        confidence = bool(options.get("enable_confidence_head", "confidence_head.proj.weight" in found))
        self._refuse(found, options, rank, shifted, causal)
        return BlockConfig(
            layers,
            target_size=options.get("target_hidden_size") or layers.hidden_size,
            target_layers=options.get("num_target_layers") or target.num_layers,
            taps=tuple(i + 1 for i in found.need(options, "target_layer_ids")),
            mask_token=found.need(options, "mask_token_id"),
            block_size=found.need(options, "block_size") - shifted,  # which leaves the last place of a block unused
            causal=causal,
            from_root=shifted or bool(options.get("sample_from_anchor", "dflash_config" not in raw)),
            markov_rank=rank,
            markov=str(options.get("markov_head_type") or "vanilla").lower(),
            confidence=confidence,
            confidence_markov=confidence and bool(options.get("confidence_head_with_markov", rank)),
            own_embedding="embed_tokens.weight" in found,
            own_head="lm_head.weight" in found,
        )

    def _refuse(self, found: Found, options: dict, rank: int, shifted: bool, causal: bool) -> None:
        reasons = {
            f"markov_head_type {options.get('markov_head_type')!r}": rank
            and str(options.get("markov_head_type") or "vanilla").lower() not in MARKOV,
            "draft_shift without causal_head": shifted and not causal,
            f"attention_mode {options.get('attention_mode')!r}": options.get("attention_mode") not in (None, "gqa", "mha"),
            f"projector_type {options.get('projector_type')!r}": options.get("projector_type") not in (None, "dflash", "dspark"),
        }
        for reason, given in reasons.items():
            if given:
                raise ConfigError(f"{found.where}: {reason} is not supported; use a head without it")

    def names(self, config: BlockConfig, found: Found | None = None) -> dict[str, list[str]]:
        gate = "joint_proj" if config.markov == "rnn" else "gate_proj"
        return {
            "fc": ["fc.weight"],
            "hidden_norm": ["hidden_norm.weight"],
            "norm": ["norm.weight"],
            "embed": ["embed_tokens.weight"],
            "head": ["lm_head.weight"],
            "markov.first": ["markov_head.markov_w1.weight"],
            "markov.second": ["markov_head.markov_w2.weight"],
            "markov.gate": [f"markov_head.{gate}.weight"],
            "markov.gate_bias": [f"markov_head.{gate}.bias"],
            "confidence": ["confidence_head.proj.weight"],
            "confidence_bias": ["confidence_head.proj.bias"],
        } | layer_names("layers.N")

    def raw(self, config: BlockConfig) -> dict:
        shifted = config.from_root and config.causal
        options = {
            "target_layer_ids": [tap - 1 for tap in config.taps],
            "mask_token_id": config.mask_token,
            "markov_rank": config.markov_rank,
            "markov_head_type": config.markov,
            "enable_confidence_head": config.confidence,
            "confidence_head_with_markov": config.confidence_markov,
        }
        raw = to_hf(config.layers) | {
            "architectures": ["Qwen3DSparkModel" if config.from_root and not shifted else "DFlashDraftModel"],
            "block_size": config.block_size + shifted,
            "target_hidden_size": config.target_size,
            "num_target_layers": config.target_layers,
        }
        if config.from_root and not shifted:
            return raw | options | {"sample_from_anchor": True}
        return raw | {"dflash_config": options | {"causal_head": config.causal, "draft_shift": shifted}}
