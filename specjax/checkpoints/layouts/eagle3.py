"""EAGLE-3 and P-EAGLE heads as the authors of EAGLE-3 and SpecForge write them.

``taps`` name the layers of the target whose *inputs* the head reads. Checkpoints name the same
layers in three ways:

- ``eagle_config.eagle_aux_hidden_state_layer_ids`` (SpecForge, SGLang, TensorRT-LLM) names the
  layers whose *outputs* are read. The numbers are smaller by one.
- ``eagle_aux_hidden_state_layer_ids`` at the top level (speculators, vLLM) names the layers whose
  inputs are read. The numbers are the same.
- Heads of the authors name no layers. They read the inputs of layers 2, L // 2 and L - 3.
"""

import numpy as np

from ...errors import ConfigError
from ...heads.eagle3 import Eagle3Config, Eagle3Head
from ...models.config import ModelConfig
from ..blocks import Names
from ..config import to_hf
from ..families import layer_names
from ..json_fields import flag, table
from ..unlisted_options import check_options
from .base import DEPTH, TOKEN, TOKENS, WIDTH, Layout, RawCheckpoint, layer_ids, read_layers, without
from .draft_vocabulary import add_marks, check_offsets

IDS = "eagle_aux_hidden_state_layer_ids"
FLAGS = ("norm_before_residual", "fc_norm", "norm_before_fc", "norm_output")
_OWN = {
    "draft_vocab_size", "target_hidden_size", "num_target_layers", "eagle_config", IDS, *FLAGS, "num_aux_hidden_states",
    "target_model_type", "modal_type", "parallel_drafting", "mask_token_id",
}  # fmt: skip
_NESTED = {
    IDS, *FLAGS, "use_aux_hidden_state", "use_input_layernorm_in_first_layer", "use_last_layernorm",
    "next_layer_regular", "has_lm_head",
}  # fmt: skip
_FIELDS = {
    "num_target_layers": DEPTH,
    "target_hidden_size": WIDTH,
    "draft_vocab_size": TOKENS,
    "mask_token_id": TOKEN.optional(),
    "parallel_drafting": flag(),
    **{name: flag() for name in FLAGS},
}


class Eagle3Layout(Layout):
    """EAGLE-3 and P-EAGLE, in the layout of the authors of EAGLE-3 and of SpecForge.

    The layer is ``midlayer`` or ``layers.0``. Flags are at the top level of config.json or in
    ``eagle_config``.
    """

    name, kind, default = "eagle3", "eagle3", True
    layer = "midlayer"

    def matches(self, checkpoint: RawCheckpoint) -> bool:
        return checkpoint.begins("midlayer.", "layers.0.hidden_norm.", "d2t") or checkpoint.architecture("Eagle3")

    def config(self, checkpoint: RawCheckpoint, target: ModelConfig) -> Eagle3Config:
        nested = checkpoint.read(checkpoint.raw, {"eagle_config": table().optional()})["eagle_config"] or {}
        check_options(nested, _NESTED, f"{checkpoint.where}: eagle_config")
        fields = {IDS: layer_ids(-1).optional(), "use_aux_hidden_state": flag(True)}
        outputs = checkpoint.read(nested, fields, "eagle_config")
        if not outputs["use_aux_hidden_state"]:
            raise ConfigError(
                f"{checkpoint.where}: use_aux_hidden_state = false is not supported; "
                "use a head that reads several layers"
            )
        if outputs[IDS]:
            ids = [i + 1 for i in outputs[IDS]]
        else:
            ids = checkpoint.read(checkpoint.raw, {IDS: layer_ids().optional()})[IDS]
        return self.build(checkpoint, without(checkpoint.raw, _OWN), checkpoint.raw | nested, ids, target)

    def build(
        self, checkpoint: RawCheckpoint, raw: dict, options: dict, ids: list[int] | None, target: ModelConfig
    ) -> Eagle3Config:
        """The configuration of a head.

        ``ids``: the layers whose inputs are read; None for the layers of the paper.
        """
        layers = read_layers(checkpoint, raw, "midlayer" if checkpoint.begins("midlayer.") else "layers.0")
        parallel = "mask_hidden" in checkpoint or checkpoint.read(options, _FIELDS)["parallel_drafting"]
        options = checkpoint.read(options, _FIELDS | ({"mask_token_id": TOKEN} if parallel else {}))
        depth = options["num_target_layers"] or target.num_layers
        return Eagle3Config(
            layers,
            target_size=options["target_hidden_size"] or layers.hidden_size,
            target_layers=depth,
            taps=tuple(ids or (2, depth // 2, depth - 3)),
            draft_vocab_size=options["draft_vocab_size"] or layers.vocab_size,
            own_embedding="embed_tokens.weight" in checkpoint,
            mask_token=options["mask_token_id"] if parallel else None,
            **{name: options[name] for name in FLAGS},
        )

    def names(self, config: Eagle3Config, checkpoint: RawCheckpoint | None = None) -> Names:
        own_prefix = self.layer if config.layers.num_layers == 1 else "layers.N"
        prefix = own_prefix if checkpoint is None else "midlayer" if checkpoint.begins("midlayer.") else "layers.N"
        whole = config.draft_vocab_size == config.vocab_size and (checkpoint is None or "d2t" not in checkpoint)
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
        ids = {IDS: [tap - 1 for tap in config.taps], "use_aux_hidden_state": True}
        masked = {} if config.mask_token is None else {"parallel_drafting": True}
        named = {"architectures": ["LlamaForCausalLMEagle3"], "eagle_config": ids}
        return to_hf(config.layers) | named | masked | own_options(config)

    def owns(self, name: str, config: Eagle3Config, checkpoint: RawCheckpoint) -> bool:
        return name != "t2d"

    def check_values(self, module: Eagle3Head, checkpoint: RawCheckpoint) -> None:
        check_offsets(np.asarray(module.draft_to_target[...]), module.config.vocab_size, checkpoint)

    def complete(self, tensors: dict[str, np.ndarray], config: Eagle3Config) -> dict[str, np.ndarray]:
        return add_marks(tensors, config.vocab_size)


def own_options(config: Eagle3Config) -> dict:
    """The options that are the same in all layouts of EAGLE-3."""
    return {
        "draft_vocab_size": config.draft_vocab_size,
        "target_hidden_size": config.target_size,
        "num_target_layers": config.target_layers,
        **({} if config.mask_token is None else {"mask_token_id": config.mask_token}),
        **{name: getattr(config, name) for name in FLAGS},
    }
