"""Nemotron-H (2504.03624): every layer is Mamba-2, attention without positions, or an MLP alone.

Steps of Mamba-2 have no lower bound, as in other programs and in the decoding of transformers. The
prefill of transformers raises them to ``time_step_min``.
"""

from ...errors import ConfigError
from ...models.config import ModelConfig
from ...models.feed_forwards import NoMlpConfig, PlainMlpConfig
from ...models.mixers import Mamba2Config, NoMixerConfig
from ...models.rope import Rope
from ..json_fields import choice, flag, integer, list_of, text
from ..schemas import ACTIVATION, CORE, EPS, HEADS, NEVER, POSITIONS, SIZE
from .base import Family, layer_names
from .mamba2 import INITIAL, NO_LIMIT, check_groups, mamba_names

_SIGNS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
"""The kinds of layers by their signs in ``hybrid_override_pattern``."""

_NAMES = {"linear_attention": "mamba", "full_attention": "attention"} | {kind: kind for kind in _SIGNS.values()}
"""The kinds of layers by their names in ``layers_block_type``."""


def _kinds(options: dict, where: str) -> list[str]:
    """The kind of each layer. Transformers too prefers the list to the pattern."""
    option = "hybrid_override_pattern" if options["layers_block_type"] is None else "layers_block_type"
    signs, names = options[option], _SIGNS if option == "hybrid_override_pattern" else _NAMES
    if not signs:
        raise ConfigError(f"{where}: layers_block_type and hybrid_override_pattern are missing; give one of them")
    if unknown := set(signs) - set(names):
        raise ConfigError(f"{where}: {option} has {min(unknown)!r}; its signs are {' '.join(names)}")
    kinds, layers = [names[sign] for sign in signs], options["num_hidden_layers"]
    if layers not in (None, len(kinds)):
        raise ConfigError(f"{where}: num_hidden_layers is {layers}; {option} has {len(kinds)} layers")
    if "moe" in kinds:
        raise ConfigError(f"{where}: {option} has a mixture of experts, which is not supported; use another model")
    return kinds


def _read(options: dict, where: str) -> dict:
    kinds, heads, groups = _kinds(options, where), options["mamba_num_heads"], options["n_groups"]
    check_groups(heads, groups, where)
    mamba = Mamba2Config(
        heads, options["mamba_head_dim"], groups, options["ssm_state_size"], options["conv_kernel"],
        options["use_conv_bias"], options["use_bias"],
    )  # fmt: skip
    mlp = PlainMlpConfig(options["intermediate_size"], options["hidden_act"], options["mlp_bias"])
    return dict(
        num_layers=len(kinds),
        rope=Rope(rotated=0.0),
        gated=False,
        mlp_bias=options["mlp_bias"],
        mixers=tuple({"mamba": mamba, "attention": None, "mlp": NoMixerConfig()}[kind] for kind in kinds),
        mlps=tuple(mlp if kind == "mlp" else NoMlpConfig() for kind in kinds),
    )


def _write(config: ModelConfig) -> dict:
    mamba = next((mixer for mixer in config.mixers if isinstance(mixer, Mamba2Config)), None)
    names = {Mamba2Config: "linear_attention", NoMixerConfig: "mlp", type(None): "full_attention"}
    own = {}
    if mamba is not None:
        own = {
            "mamba_num_heads": mamba.heads,
            "mamba_head_dim": mamba.head_dim,
            "n_groups": mamba.groups,
            "ssm_state_size": mamba.state_dim,
            "conv_kernel": mamba.kernel,
            "use_conv_bias": mamba.conv_bias,
            "use_bias": mamba.bias,
        }
    return own | {"layers_block_type": [names[type(mixer)] for mixer in config.mixers], "mlp_bias": config.mlp_bias}


NEMOTRON_H = Family(
    "nemotron_h",
    "NemotronHForCausalLM",
    "Nemotron-H 4B, 8B, 47B and 56B, Nemotron Nano 9B and 12B v2",
    CORE
    | {
        "hidden_size": integer(1, 2**18).otherwise(4096),
        "intermediate_size": SIZE.otherwise(21504),
        "num_hidden_layers": integer(1, 1024).optional(),
        "num_attention_heads": HEADS.otherwise(32),
        "num_key_value_heads": HEADS.optional(8),
        "head_dim": integer(2, 4096).otherwise(128),
        "max_position_embeddings": POSITIONS.otherwise(4096),
        "layer_norm_epsilon": EPS.otherwise(1e-5),
        "mlp_hidden_act": ACTIVATION.otherwise("relu2"),
        "mamba_hidden_act": choice("silu", "swish").otherwise("silu"),
        "hybrid_override_pattern": text().optional(),
        "layers_block_type": list_of(choice(*_NAMES)).optional(),
        "mamba_num_heads": HEADS.otherwise(128),
        "mamba_head_dim": SIZE.otherwise(64),
        "n_groups": HEADS.otherwise(8),
        "ssm_state_size": SIZE.otherwise(128),
        "conv_kernel": integer(2, 64).otherwise(4),
        "use_bias": flag(),
        "use_conv_bias": flag(True),
        "mlp_bias": flag(),
        "attention_bias": NEVER,
        "time_step_limit": NO_LIMIT,
    },
    {
        "embed": ["backbone.embeddings.weight"],
        "norm": ["backbone.norm_f.weight"],
        "head": ["lm_head.weight"],
    }
    | layer_names(
        "backbone.layers.N",
        {
            "mixer_norm": ["norm.weight"],
            "mlp_norm": ["norm.weight"],
            "mixer.qkv": [f"mixer.{x}_proj.weight" for x in "qkv"],
            "mixer.out": ["mixer.o_proj.weight"],
            "mlp.up": ["mixer.up_proj.weight"],
            "mlp.up_bias": ["mixer.up_proj.bias"],
            "mlp.down": ["mixer.down_proj.weight"],
            "mlp.down_bias": ["mixer.down_proj.bias"],
        }
        | mamba_names("mixer"),
    ),
    refused="mixtures of experts",
    read=_read,
    write=_write,
    renamed={"hidden_act": "mlp_hidden_act", "rms_norm_eps": "layer_norm_epsilon"},
    former={"attention_head_dim": "head_dim", "layer_types": "layers_block_type"},
    theta=None,
    harmless=INITIAL
    | {
        "expand", "hidden_dropout", "mamba_proj_bias", "mamba_ssm_cache_dtype", "mtp_layers_block_type",
        "num_logits_to_keep", "rms_norm_eps", "use_mamba_kernels",
        # of the mixtures of experts that other checkpoints have
        "moe_intermediate_size", "moe_latent_size", "moe_shared_expert_intermediate_size", "moe_shared_expert_overlap",
        "n_group", "n_routed_experts", "n_shared_experts", "norm_topk_prob", "num_experts_per_tok",
        "output_router_logits", "routed_scaling_factor", "topk_group",
    },
)  # fmt: skip
