"""EAGLE-3, P-EAGLE and multi-token prediction of speculators 0.9, and the form of all its types.

All types share one form of config.json. The decoder layers are in ``transformer_layer_config``; the
other options are at the top level. Layer numbers name the layers whose inputs are read, as ``taps``
do. Embeddings and output matrix are in the file only where they differ from the target's. Tensors
``verifier_*`` are copies of the target's and are not read.
"""

from ...errors import ConfigError
from ...heads import HeadConfig
from ...heads.eagle3 import Eagle3Config
from ...heads.mtp import MtpConfig
from ...models.config import ModelConfig
from ..config import to_hf
from ..json_fields import table
from ..unlisted_options import check_options
from .base import Layout, RawCheckpoint, layer_ids
from .eagle3 import FLAGS, IDS, Eagle3Layout, own_options
from .mtp import MTP_FLAGS, MimoLayout, write_flags

_OUTER = {
    "architectures", "model_type", "speculators_model_type", "speculators_version", "speculators_config",
    "transformer_layer_config", "draft_vocab_size", "target_hidden_size", "num_target_layers", "mask_token_id", "dtype",
    "torch_dtype", "has_no_defaults_at_init", "tie_word_embeddings", "rope_theta", "rope_parameters", "rope_scaling",
}  # fmt: skip
_LAYER_OPTIONS = ("rope_theta", "rope_scaling", "rope_parameters", "dtype", "torch_dtype")
"""Options of the decoder layers that some versions write at the top level."""


class Speculators(Layout):
    """The form that all types share.

    Attributes:
      type: the value of ``speculators_model_type``.
      architecture: the value of ``architectures``.
      options: the names of the type's own options.
    """

    type: str
    architecture: str
    options: frozenset[str] = frozenset()

    def is_default(self, config: HeadConfig) -> bool:
        return False

    def matches(self, checkpoint: RawCheckpoint) -> bool:
        return checkpoint.raw.get("speculators_model_type") == self.type

    def layer_config(self, checkpoint: RawCheckpoint) -> dict:
        """The options of the decoder layers. Raises ConfigError for an unknown one."""
        check_options(checkpoint.raw, _OUTER | self.options, checkpoint.where)
        nested = checkpoint.read(checkpoint.raw, {"transformer_layer_config": table()})
        return {key: checkpoint.raw[key] for key in _LAYER_OPTIONS if key in checkpoint.raw} | nested[
            "transformer_layer_config"
        ]

    def owns(self, name: str, config, checkpoint: RawCheckpoint) -> bool:
        return name != "t2d" and not name.startswith("verifier_")

    def envelope(self, layers: dict, tokens: int) -> dict:
        """The options that all types share, for a head that drafts ``tokens`` tokens."""
        return {
            "architectures": [self.architecture],
            "speculators_model_type": self.type,
            "speculators_config": {
                "algorithm": self.type,
                "default_proposal_method": "greedy",
                "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": tokens}],
                "verifier": {"name_or_path": None, "architectures": []},
            },
            "transformer_layer_config": layers,
        }

    def check_qwen3(self, config: HeadConfig) -> None:
        """Raises ConfigError for layers other than Qwen3's. This type has no others."""
        layers = config.layers
        if layers is None or layers.family != "qwen3" or not layers.qk_norm:
            raise ConfigError(
                f"the layout {self.name!r} holds layers of qwen3, not of {layers and layers.family}; use another layout"
            )


class SpeculatorsEagle3(Speculators, Eagle3Layout):
    """EAGLE-3.

    The tensors are ``layers.N``, ``fc``, ``norm``, ``lm_head`` over the draft vocabulary, ``d2t``
    and ``t2d``.
    """

    name, type, architecture, layer = "speculators", "eagle3", "Eagle3Speculator", "layers.N"
    options = frozenset({
        IDS, *FLAGS, "parallel_drafting", "embed_requires_grad", "enable_sp_ulysses", "draft_attn_kernel",
    })  # fmt: skip

    def config(self, checkpoint: RawCheckpoint, target: ModelConfig) -> Eagle3Config:
        ids = checkpoint.read(checkpoint.raw, {IDS: layer_ids().optional()})[IDS]
        return self.build(checkpoint, self.layer_config(checkpoint), checkpoint.raw, ids, target)

    def raw(self, config: Eagle3Config) -> dict:
        masked = {} if config.mask_token is None else {"parallel_drafting": True}
        return self.envelope(to_hf(config.layers), 5) | {IDS: list(config.taps)} | masked | own_options(config)


class SpeculatorsPEagle(SpeculatorsEagle3):
    """P-EAGLE: EAGLE-3 with ``mask_hidden``."""

    name, type, architecture = "speculators-peagle", "peagle", "PEagleDraftModel"

    def raw(self, config: Eagle3Config) -> dict:
        if config.mask_token is None:
            raise ConfigError(
                f"the layout {self.name!r} holds P-EAGLE heads, which have a mask; use speculators for this one"
            )
        return self.envelope(to_hf(config.layers), 8) | {IDS: list(config.taps)} | own_options(config)


class SpeculatorsMtp(Speculators, MimoLayout):
    """Multi-token prediction: one module, ``mtp_layers.0``, of one layer.

    ``transformer_layer_config`` is the target's, its number of layers included. The package trains
    a module on the target's hidden states before the final norm.
    """

    name, type, architecture = "speculators-mtp", "mtp", "MTPDraftModel"
    several, normed_features, hidden_first = False, False, False
    options = frozenset({"num_nextn_predict_layers", "embed_requires_grad", *MTP_FLAGS})

    def prefix(self, depth: int, module: int) -> str:
        return f"mtp_layers.{module}."

    def config(self, checkpoint: RawCheckpoint, target: ModelConfig) -> MtpConfig:
        own = {key: checkpoint.raw[key] for key in ("num_nextn_predict_layers", *MTP_FLAGS) if key in checkpoint.raw}
        return self.build(checkpoint, self.layer_config(checkpoint) | own)

    def raw(self, config: MtpConfig) -> dict:
        self.check_qwen3(config)
        if config.layers.num_layers > 1 or config.hidden_first or not config.norm_output:
            reason = "passes on raw hidden states" if not config.norm_output else "has the hidden state first"
            reason = "has several layers" if config.layers.num_layers > 1 else reason
            raise ConfigError(f"the layout {self.name!r} holds no module that {reason}; use mtp or deepseek")
        own = ("num_nextn_predict_layers", "mtp_num_hidden_layers", *MTP_FLAGS)
        layers = {key: value for key, value in super(Speculators, self).raw(config).items() if key not in own}
        return self.envelope(layers, 3) | {"num_nextn_predict_layers": 1} | write_flags(config)
