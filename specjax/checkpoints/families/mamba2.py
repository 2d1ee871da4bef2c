"""State spaces: Mamba-2 (Dao & Gu 2024, arXiv 2405.21060), and Nemotron-H (arXiv 2504.03624).

Every layer of Mamba-2 is a state space alone. In Nemotron-H every layer is one, or attention
without positions, or an MLP. Steps have no lower bound, as in other programs and in the decoding of
transformers. The prefill of transformers raises those of Nemotron-H to ``time_step_min``.
"""

from ...errors import ConfigError
from ...models.config import ModelConfig
from ...models.feed_forwards import NoMlpConfig, PlainMlpConfig
from ...models.mixers import Mamba2Config, NoMixerConfig
from ...models.rope import Rope
from ..json_fields import Field, choice, flag, integer, list_of, text
from ..schemas import ACTIVATION, CORE, EPS, HEADS, NEVER, POSITIONS, SIZE
from .base import Family, layer_names

_INFINITY = {"__float__": "Infinity"}
"""How transformers writes the number."""

NO_LIMIT = Field("[0, Infinity]", lambda value: value in ([0, float("inf")], [0, _INFINITY]), None, null=True)
"""The option of bounds of steps, of which none is supported."""

INITIAL = frozenset({
    "chunk_size", "rescale_prenorm_residual", "residual_in_fp32", "time_step_floor", "time_step_max", "time_step_min",
    "time_step_rank",
})  # fmt: skip
"""Options of the first weights, and of the order in which sums are taken."""

_CONTEXT = 2**20
"""The context that llama.cpp gives to a model without positions."""


def mamba_names(module: str) -> dict[str, list]:
    """The tensors of each parameter of a Mamba-2 mixer in ``module``."""
    return {
        "mixer.joint": [f"{module}.in_proj.weight"] * 5,
        "mixer.joint_bias": [f"{module}.in_proj.bias"] * 5,
        "mixer.conv": [f"{module}.conv1d.weight"] * 3,
        "mixer.conv_bias": [f"{module}.conv1d.bias"] * 3,
        "mixer.log_rate": [f"{module}.A_log"],
        "mixer.step_bias": [f"{module}.dt_bias"],
        "mixer.skip": [f"{module}.D"],
        "mixer.norm": [f"{module}.norm.weight"],
        "mixer.out_proj": [f"{module}.out_proj.weight"],
        "mixer.out_proj_bias": [f"{module}.out_proj.bias"],
    }


def check_groups(heads: int, groups: int, where: str) -> None:
    """Raises ConfigError for groups that do not divide the heads."""
    if heads % groups:
        raise ConfigError(f"{where}: n_groups is {groups}; it must divide the {heads} heads of Mamba-2")


def _read(options: dict, where: str) -> dict:
    heads, size, groups = options["num_attention_heads"], options["head_dim"], options["n_groups"]
    check_groups(heads, groups, where)
    width = options["expand"] * options["hidden_size"]
    if heads * size != width:
        raise ConfigError(
            f"{where}: num_heads is {heads} and head_dim {size}; their product must be expand * hidden_size, {width}"
        )
    mixer = Mamba2Config(
        heads, size, groups, options["state_size"], options["conv_kernel"], options["use_conv_bias"],
        options["use_bias"],
    )  # fmt: skip
    layers = options["num_hidden_layers"]
    return dict(
        intermediate_size=width,
        max_position_embeddings=_CONTEXT,
        mixers=(mixer,) * layers,
        mlps=(NoMlpConfig(),) * layers,
    )


def _write(config: ModelConfig) -> dict:
    mixer = config.mixers[0]
    assert isinstance(mixer, Mamba2Config)
    return {
        "n_groups": mixer.groups,
        "state_size": mixer.state_dim,
        "conv_kernel": mixer.kernel,
        "expand": mixer.heads * mixer.head_dim // config.hidden_size,
        "use_conv_bias": mixer.conv_bias,
        "use_bias": mixer.bias,
    }


MAMBA2 = Family(
    "mamba2",
    "Mamba2ForCausalLM",
    "Mamba-Codestral 7B, Mamba-2 130M to 2.7B in the form of transformers",
    CORE
    | {
        "hidden_size": integer(1, 2**18).otherwise(4096),
        "num_hidden_layers": integer(1, 1024).otherwise(64),
        "num_heads": HEADS.otherwise(128),
        "head_dim": integer(2, 4096).otherwise(64),
        "hidden_act": choice("silu", "swish").otherwise("silu"),
        "layer_norm_epsilon": EPS.otherwise(1e-5),
        "n_groups": HEADS.otherwise(8),
        "state_size": SIZE.otherwise(128),
        "conv_kernel": integer(2, 64).otherwise(4),
        "expand": SIZE.otherwise(2),
        "use_bias": flag(),
        "use_conv_bias": flag(True),
        "time_step_limit": NO_LIMIT,
    },
    {
        "embed": ["backbone.embeddings.weight"],
        "norm": ["backbone.norm_f.weight"],
        "head": ["lm_head.weight"],
    }
    | layer_names("backbone.layers.N", {"mixer_norm": ["norm.weight"]} | mamba_names("mixer")),
    read=_read,
    write=_write,
    renamed={"num_attention_heads": "num_heads", "rms_norm_eps": "layer_norm_epsilon"},
    theta=None,
    harmless=INITIAL,
    aliases={"backbone.embeddings.weight": "backbone.embedding.weight"},
)

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


def _read_nemotron(options: dict, where: str) -> dict:
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


def _write_nemotron(config: ModelConfig) -> dict:
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
    read=_read_nemotron,
    write=_write_nemotron,
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
