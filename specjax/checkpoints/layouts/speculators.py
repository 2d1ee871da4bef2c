"""EAGLE-3, P-EAGLE, multi-token prediction, DFlash and DSpark as speculators 0.9 writes them.

All types share one form of config.json. The decoder layers are in ``transformer_layer_config``; the
other options are at the top level. Layer numbers name the layers whose inputs are read, as ``taps``
do. Embeddings and output matrix are in the file only where they differ from the target's. Tensors
``verifier_*`` are copies of the target's and are not read.
"""

import numpy as np

from ...errors import ConfigError
from ...heads import HeadConfig
from ...heads.block import BlockConfig, BlockHead
from ...heads.eagle3 import Eagle3Config
from ...heads.mtp import MtpConfig
from ...models.config import ModelConfig
from ..config import to_hf
from ..fields import flag, table
from ..schemas import check_options
from .base import DEPTH, TOKEN, TOKENS, WIDTH, Found, Layout, layer_ids, read_layers
from .block import BLOCK_SIZE, DFlashLayout, read_corrections, write_corrections
from .draft_vocabulary import add_marks, check_offsets
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

    def matches(self, found: Found) -> bool:
        return found.raw.get("speculators_model_type") == self.type

    def layer_config(self, found: Found) -> dict:
        """The config.json of the decoder layers.

        Raises ConfigError for an unknown option at the top level.
        """
        check_options(found.raw, _OUTER | self.options, found.where)
        nested = found.read(found.raw, {"transformer_layer_config": table()})
        return {key: found.raw[key] for key in _LAYER_OPTIONS if key in found.raw} | nested["transformer_layer_config"]

    def owns(self, name: str, config, found: Found) -> bool:
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

    def config(self, found: Found, target: ModelConfig) -> Eagle3Config:
        ids = found.read(found.raw, {IDS: layer_ids().optional()})[IDS]
        return self.build(found, self.layer_config(found), found.raw, ids, target)

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

    def config(self, found: Found, target: ModelConfig) -> MtpConfig:
        own = {key: found.raw[key] for key in ("num_nextn_predict_layers", *MTP_FLAGS) if key in found.raw}
        return self.build(found, self.layer_config(found) | own)

    def raw(self, config: MtpConfig) -> dict:
        self.check_qwen3(config)
        if config.layers.num_layers > 1 or config.hidden_first or not config.norm_output:
            reason = "passes on raw hidden states" if not config.norm_output else "has the hidden state first"
            reason = "has several layers" if config.layers.num_layers > 1 else reason
            raise ConfigError(f"the layout {self.name!r} holds no module that {reason}; use mtp or deepseek")
        own = ("num_nextn_predict_layers", "mtp_num_hidden_layers", *MTP_FLAGS)
        layers = {key: value for key, value in super(Speculators, self).raw(config).items() if key not in own}
        return self.envelope(layers, 3) | {"num_nextn_predict_layers": 1} | write_flags(config)


class SpeculatorsDFlash(Speculators, DFlashLayout):
    """DFlash.

    The tensors are ``fc``, ``hidden_norm``, ``layers.N`` and ``norm``; with a draft vocabulary also
    ``lm_head``, ``d2t`` and ``t2d``.

    A layer with an attention window is causal within a block, unless ``sliding_window_non_causal``
    is set. A layer without a window is never causal within a block. A node's window ends at the
    node, as in serving code. The package itself trains with windows that end at the root.
    """

    name, type, architecture, from_root = "speculators-dflash", "dflash", "DFlashDraftModel", False
    options = frozenset({
        "block_size", "aux_hidden_state_layer_ids", "sliding_window_non_causal", "sample_from_anchor",
        "embed_requires_grad",
    })  # fmt: skip

    def config(self, found: Found, target: ModelConfig) -> BlockConfig:
        layers = read_layers(found, self.layer_config(found), "layers.0")
        fields = {
            "aux_hidden_state_layer_ids": layer_ids(),
            "mask_token_id": TOKEN,
            "block_size": BLOCK_SIZE.otherwise(8),
            "draft_vocab_size": TOKENS,
            "target_hidden_size": WIDTH,
            "num_target_layers": DEPTH,
            "sliding_window_non_causal": flag(),
            "sample_from_anchor": flag(self.from_root),
        }
        options = found.read(found.raw, fields)
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
            own_embedding="embed_tokens.weight" in found,
            own_head="lm_head.weight" in found,
            draft_vocab_size=options["draft_vocab_size"],
            **self.corrections(found),
        )

    def corrections(self, found: Found) -> dict:
        """The fields of ``BlockConfig`` for Markov and confidence heads."""
        return {}

    def raw(self, config: BlockConfig) -> dict:
        self.check_qwen3(config)
        windowed = [window is not None for window in config.layers.windows or (None,)]
        if config.causal and not all(windowed):
            raise ConfigError(f"the layout {self.name!r} holds causal layers only with attention windows; use dflash")
        if (config.markov_rank or config.confidence) and self.type == "dflash":
            raise ConfigError(f"the layout {self.name!r} holds no Markov or confidence head; use speculators-dspark")
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

    def check_values(self, module: BlockHead, found: Found) -> None:
        if module.draft_to_target is not None:
            check_offsets(np.asarray(module.draft_to_target[...]), module.config.vocab_size, found)

    def complete(self, tensors: dict[str, np.ndarray], config: BlockConfig) -> dict[str, np.ndarray]:
        return add_marks(tensors, config.vocab_size)


class SpeculatorsDSpark(SpeculatorsDFlash):
    """DSpark: DFlash with ``markov_head`` and ``confidence_head``.

    A place of the block predicts the token after it.
    """

    name, type, architecture, from_root = "speculators-dspark", "dspark", "DSparkDraftModel", True
    options = SpeculatorsDFlash.options | {
        "markov_rank", "markov_head_type", "enable_confidence_head", "confidence_head_with_markov",
    }  # fmt: skip

    def corrections(self, found: Found) -> dict:
        return read_corrections(found, {"markov_rank": 256, "enable_confidence_head": True} | found.raw)

    def raw(self, config: BlockConfig) -> dict:
        return super().raw(config) | write_corrections(config)
