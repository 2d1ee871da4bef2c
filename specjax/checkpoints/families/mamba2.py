"""Mamba-2 (Dao & Gu 2024, arXiv 2405.21060): every layer is a state space alone."""

from ...errors import ConfigError
from ...models.config import ModelConfig
from ...models.feed_forwards import NoMlpConfig
from ...models.mixers import Mamba2Config
from ..json_fields import Field, choice, flag, integer
from ..schemas import CORE, EPS, HEADS, SIZE
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
