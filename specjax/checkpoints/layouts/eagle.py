"""EAGLE heads as published: EAGLE-1 and 2, EAGLE-3 of the authors and of SpecForge, EAGLE-3 in the speculators format; P-EAGLE in both of these.

Layers of the target are named by three conventions. ``taps`` here name layers whose *inputs* are read: 2, L // 2 and L - 3 by default.

- ``eagle_config.eagle_aux_hidden_state_layer_ids`` (SpecForge, SGLang, TensorRT-LLM) names layers whose *outputs* are read: one less.
- ``eagle_aux_hidden_state_layer_ids`` at the top level (speculators, vLLM) names layers whose inputs are read: the same numbers.
- Where neither is there (the authors' own heads) the default holds.
"""

import numpy as np

from ...errors import CheckpointError, ConfigError
from ...heads.eagle import Eagle3Config, Eagle3Head, EagleConfig, EagleHead
from ...models.config import ModelConfig
from ..config import check_options, to_hf
from ..families import layer_names
from .base import Found, Layout, layers_of, without

_IDS = "eagle_aux_hidden_state_layer_ids"
_FLAGS = ("norm_before_residual", "fc_norm", "norm_before_fc", "norm_output")
_OWN = {
    "draft_vocab_size", "target_hidden_size", "num_target_layers", "eagle_config", _IDS, *_FLAGS, "num_aux_hidden_states", "target_model_type",
    "modal_type", "parallel_drafting", "mask_token_id",
}  # fmt: skip
_NESTED = {
    _IDS, *_FLAGS, "use_aux_hidden_state", "use_input_layernorm_in_first_layer", "use_last_layernorm", "next_layer_regular", "has_lm_head",
}  # fmt: skip
_OUTER = {
    "architectures", "model_type", "speculators_model_type", "speculators_version", "speculators_config", "transformer_layer_config",
    "draft_vocab_size", "target_hidden_size", "num_target_layers", _IDS, *_FLAGS, "parallel_drafting", "mask_token_id", "dtype", "torch_dtype", "embed_requires_grad",
    "has_no_defaults_at_init", "enable_sp_ulysses", "draft_attn_kernel", "tie_word_embeddings", "rope_theta", "rope_parameters", "rope_scaling",
}  # fmt: skip


class Eagle(Layout):
    """EAGLE-1 and 2: ``fc``, ``layers.0`` without input norm, no norm at the end; config.json is that of a one-layer language model."""

    name, kind, module = "eagle", "eagle", EagleHead

    def matches(self, found: Found) -> bool:
        return "fc.weight" in found and found.begins("layers.0.")

    def config(self, found: Found, target: ModelConfig) -> EagleConfig:
        raw = found.raw
        return EagleConfig(
            layers_of(found, without(raw, ("bias", "qkv_bias", "num_target_layers")), "layers.0"),
            target_layers=raw.get("num_target_layers") or target.num_layers,
            bias=bool(raw.get("bias", True)),
            own_embedding="embed_tokens.weight" in found,
            first_norm="layers.0.input_layernorm.weight" in found,
        )

    def names(self, config: EagleConfig, found: Found | None = None) -> dict[str, list[str]]:
        return {"fc": ["fc.weight"], "fc_bias": ["fc.bias"], "embed": ["embed_tokens.weight"]} | layer_names("layers.N")

    def raw(self, config: EagleConfig) -> dict:
        return to_hf(config.layers) | {"bias": config.bias, "num_target_layers": config.target_layers}


class Eagle3(Layout):
    """EAGLE-3 of its authors and of SpecForge: the layer is ``midlayer``, or ``layers.0``; flags at the top level or in ``eagle_config``."""

    name, kind, module = "eagle3", "eagle3", Eagle3Head

    def matches(self, found: Found) -> bool:
        return found.begins("midlayer.", "layers.0.hidden_norm.", "d2t") or found.architecture("Eagle3")

    def config(self, found: Found, target: ModelConfig) -> Eagle3Config:
        nested = found.raw.get("eagle_config") or {}
        check_options(nested, _NESTED, f"{found.where}: eagle_config")
        if nested.get("use_aux_hidden_state") is False:
            raise ConfigError(f"{found.where}: use_aux_hidden_state = false is not supported; only heads that read several layers are")
        ids = [i + 1 for i in nested[_IDS]] if nested.get(_IDS) else found.raw.get(_IDS)
        return self._of(found, without(found.raw, _OWN), found.raw | nested, ids, target)

    def _of(self, found: Found, raw: dict, options: dict, ids: list[int] | None, target: ModelConfig) -> Eagle3Config:
        layers = layers_of(found, raw, "midlayer" if found.begins("midlayer.") else "layers.0")
        depth = options.get("num_target_layers") or target.num_layers
        return Eagle3Config(
            layers,
            target_size=options.get("target_hidden_size") or layers.hidden_size,
            target_layers=depth,
            taps=tuple(ids or (2, depth // 2, depth - 3)),
            draft_vocab_size=options.get("draft_vocab_size") or layers.vocab_size,
            own_embedding="embed_tokens.weight" in found,
            mask_token=found.need(options, "mask_token_id") if "mask_hidden" in found or options.get("parallel_drafting") else None,
            **{flag: bool(options.get(flag, False)) for flag in _FLAGS},
        )

    def names(self, config: Eagle3Config, found: Found | None = None) -> dict[str, list[str]]:
        return self._names(config, found, "midlayer" if config.layers.num_layers == 1 else "layers.N")

    def _names(self, config: Eagle3Config, found: Found | None, written: str) -> dict[str, list[str]]:
        """With the layers under the prefix that is ``found``, or else ``written``."""
        prefix = written if found is None else "midlayer" if found.begins("midlayer.") else "layers.N"
        whole = config.draft_vocab_size == config.vocab_size and (found is None or "d2t" not in found)
        return {
            "fc": ["fc.weight"],
            "fc_norms.N": ["fc_norm.N.weight"],
            "input_norm": ["input_norm.weight"],
            "norm": ["norm.weight"],
            "head": ["lm_head.weight"],
            "embed": ["embed_tokens.weight"],
            "draft_to_target": [] if whole else ["d2t"],
            "mask_hidden": ["mask_hidden"],
            "layers.N.hidden_norm": [f"{prefix}.hidden_norm.weight"],
        } | layer_names(prefix)

    def raw(self, config: Eagle3Config) -> dict:
        ids = {_IDS: [tap - 1 for tap in config.taps], "use_aux_hidden_state": True}
        return to_hf(config.layers) | {"architectures": ["LlamaForCausalLMEagle3"], **_options(config), "eagle_config": ids}

    def owns(self, name: str, config: Eagle3Config, found: Found) -> bool:
        return name != "t2d"  # which tokens of the target the head knows: it follows from d2t

    def checked(self, module: Eagle3Head, found: Found) -> None:
        config, offsets = module.config, np.asarray(module.draft_to_target[...], np.int64)
        known = np.arange(config.draft_vocab_size) + offsets
        if known.min() < 0 or known.max() >= config.vocab_size:
            raise CheckpointError(
                f"{found.where}: d2t leads outside the vocabulary of {config.vocab_size}; it holds offsets: token i is i + d2t[i]"
            )
        if np.unique(known).size < known.size:
            raise CheckpointError(f"{found.where}: d2t maps two tokens to one; it holds offsets: token i is i + d2t[i]")
        if config.draft_vocab_size == config.vocab_size and offsets.any():
            raise CheckpointError(f"{found.where}: d2t is not zero although the head knows the whole vocabulary; remove d2t and t2d")
        if "t2d" in found and "d2t" in found:
            marked = np.asarray(found.tensors["t2d"][(slice(None),)]).astype(bool)
            if marked.shape != (config.vocab_size,) or not np.array_equal(np.flatnonzero(marked), np.sort(known)):
                raise CheckpointError(f"{found.where}: t2d and d2t name different tokens; the mapping of the draft vocabulary is damaged")

    def finished(self, tensors: dict[str, np.ndarray], config: Eagle3Config) -> dict[str, np.ndarray]:
        if "d2t" not in tensors:
            return tensors
        offsets = tensors["d2t"].astype(np.int64)
        known = np.zeros(config.vocab_size, bool)
        known[np.arange(offsets.size) + offsets] = True
        return tensors | {"d2t": offsets, "t2d": known}


class Speculators(Eagle3):
    """EAGLE-3 of the speculators library: ``layers.N``, and the layers' options in ``transformer_layer_config``."""

    name = "speculators"

    def matches(self, found: Found) -> bool:
        return found.raw.get("speculators_model_type") == "eagle3"

    def config(self, found: Found, target: ModelConfig) -> Eagle3Config:
        raw = found.raw
        check_options(raw, _OUTER, found.where)
        outer = {key: raw[key] for key in ("rope_theta", "rope_scaling", "rope_parameters", "dtype", "torch_dtype") if key in raw}
        return self._of(found, outer | found.need(raw, "transformer_layer_config"), raw, raw.get(_IDS), target)

    def names(self, config: Eagle3Config, found: Found | None = None) -> dict[str, list[str]]:
        return self._names(config, found, "layers.N")

    def raw(self, config: Eagle3Config) -> dict:
        return {
            "architectures": ["Eagle3Speculator"],
            "speculators_model_type": "eagle3",
            "speculators_config": {
                "algorithm": "eagle3",
                "default_proposal_method": "greedy",
                "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 5}],
                "verifier": {"name_or_path": None, "architectures": []},
            },
            "transformer_layer_config": to_hf(config.layers),
            _IDS: list(config.taps),
        } | _options(config)


def _options(config: Eagle3Config) -> dict:
    """What all EAGLE-3 layouts write alike."""
    masked = {} if config.mask_token is None else {"parallel_drafting": True, "mask_token_id": config.mask_token}
    return (
        masked
        | {
            "draft_vocab_size": config.draft_vocab_size,
            "target_hidden_size": config.target_size,
            "num_target_layers": config.target_layers,
        }
        | {flag: getattr(config, flag) for flag in _FLAGS}
    )
