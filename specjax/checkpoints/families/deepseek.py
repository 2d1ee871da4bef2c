"""Latent attention with experts: DeepSeek-V2 and V3 (also R1 and Kimi K2), and GLM-4.7-Flash."""

from typing import Any

from ...errors import ConfigError
from ...models.config import ModelConfig
from ...models.feed_forwards.grouped_routing import GroupedRouting
from ...models.mixers import LatentAttentionConfig
from ..blocks import Tensor, interleave
from ..json_fields import Field, choice, flag, integer, list_of, number
from ..rope_options import read_rope
from ..schemas import HEADS, NEVER, POSITIONS, ROTARY_DECODER, SIZE, SIZES
from .base import LLAMA_LAYER, Family, model_names
from .grouped import COUNT, GROUPED, GROUPED_HARMLESS, GROUPED_LAYER, read_experts, read_routing, write_experts

_NAMES = model_names(
    {path: names for path, names in LLAMA_LAYER.items() if not path.startswith("mixer.")}
    | GROUPED_LAYER
    | {
        "mixer.down": ["self_attn.q_a_proj.weight", Tensor("self_attn.kv_a_proj_with_mqa.weight", interleave)],
        "mixer.down_bias": ["self_attn.q_a_proj.bias", Tensor("self_attn.kv_a_proj_with_mqa.bias", interleave)],
        "mixer.query_norm": ["self_attn.q_a_layernorm.weight"],
        "mixer.row_norm": ["self_attn.kv_a_layernorm.weight"],
        "mixer.query": [Tensor(f"self_attn.{name}.weight", interleave) for name in ("q_proj", "q_b_proj")],
        "mixer.up_key": ["self_attn.kv_b_proj.weight"],
        "mixer.up_value": ["self_attn.kv_b_proj.weight"],
        "mixer.out": ["self_attn.o_proj.weight"],
        "mixer.out_bias": ["self_attn.o_proj.bias"],
    }
)

_OPTIONS = (
    ROTARY_DECODER
    | GROUPED
    | {
        "attention_bias": flag(),
        "mlp_bias": NEVER,
        "rope_interleave": choice(True).otherwise(True),
        "partial_rotary_factor": Field("1", lambda value: value == 1, 1.0, null=True),
        "q_lora_rank": SIZE.optional(1536),
        "kv_lora_rank": SIZE.otherwise(512),
        "qk_nope_head_dim": SIZE.otherwise(128),
        "qk_rope_head_dim": Field(
            "an even number from 2 to 4096", lambda value: type(value) is int and value in range(2, 4097, 2), 64
        ),
        "v_head_dim": SIZE.otherwise(128),
    }
)


def _read(options: dict, where: str, routing: GroupedRouting) -> dict:
    rope = read_rope(options, options["qk_rope_head_dim"], where, 10000.0, None)
    if rope.rope_type not in ("default", "yarn"):
        within = "rope_scaling" if options["rope_scaling"] else "rope_parameters"
        raise ConfigError(f"{where}: {within}.rope_type is {rope.rope_type!r}; it must be 'default' or 'yarn'")
    mixer = LatentAttentionConfig(
        options["num_attention_heads"], options["kv_lora_rank"], options["q_lora_rank"], options["qk_nope_head_dim"],
        options["qk_rope_head_dim"], options["v_head_dim"], rope, bool(options["attention_bias"]),
    )  # fmt: skip
    mixers = (mixer,) * options["num_hidden_layers"]
    return dict(rope=rope, mixers=mixers, mlps=read_experts(options, where, routing))


def _read_v2(options: dict, where: str) -> dict:
    whole = dict(groups=1, kept=1) if options["topk_method"] == "greedy" else {}
    return _read(options, where, read_routing(options, scores="softmax", best=1, corrected=False, **whole))


def _read_v3(options: dict, where: str) -> dict:
    return _read(options, where, read_routing(options))


def _write(config: ModelConfig) -> dict:
    mixer = config.mixers[0]
    assert isinstance(mixer, LatentAttentionConfig)
    return write_experts(config) | {
        "attention_bias": mixer.bias,
        "q_lora_rank": mixer.query_rank,
        "kv_lora_rank": mixer.rank,
        "qk_nope_head_dim": mixer.key_dim,
        "v_head_dim": mixer.value_dim,
    }


def _write_v2(config: ModelConfig) -> dict:
    written = _write(config)
    return written | {"topk_method": "group_limited_greedy" if written.get("n_group", 1) > 1 else "greedy"}


def _write_glm(config: ModelConfig) -> dict:
    written = {name: value for name, value in _write(config).items() if name != "first_k_dense_replace"}
    return written | {"mlp_layer_types": ["dense" if mlp is None else "sparse" for mlp in config.mlps]}


_SAME: dict[str, Any] = dict(
    refused="rope scaling other than yarn",
    renamed={"head_dim": "qk_rope_head_dim"},
    theta=None,
    harmless=GROUPED_HARMLESS | {"head_dim", "qk_head_dim"},
)

DEEPSEEK_V2 = Family(
    "deepseek_v2",
    "DeepseekV2ForCausalLM",
    "DeepSeek-V2, V2-Lite, V2.5 and their coders",
    _OPTIONS
    | {
        "max_position_embeddings": POSITIONS.otherwise(2048),
        "n_routed_experts": COUNT.otherwise(64),
        "n_shared_experts": COUNT.otherwise(2),
        "moe_intermediate_size": SIZE.otherwise(1407),
        "n_group": COUNT.optional(),
        "topk_group": COUNT.optional(),
        "first_k_dense_replace": integer(0, 1024).otherwise(0),
        "norm_topk_prob": NEVER.otherwise(False),
        "scoring_func": choice("softmax").otherwise("softmax"),
        "topk_method": choice("greedy", "group_limited_greedy").otherwise("greedy"),
    },
    _NAMES,
    read=_read_v2,
    write=_write_v2,
    **_SAME,
)

DEEPSEEK_V3 = Family(
    "deepseek_v3",
    "DeepseekV3ForCausalLM",
    "DeepSeek-V3, R1, V3.1 and Kimi K2, Moonlight",
    _OPTIONS
    | {
        "num_key_value_heads": HEADS.optional(128),
        "max_position_embeddings": POSITIONS.otherwise(4096),
        "n_routed_experts": COUNT.otherwise(256),
        "num_experts_per_tok": COUNT.otherwise(8),
        "moe_intermediate_size": SIZE.otherwise(2048),
        "routed_scaling_factor": number(0, 1e6).otherwise(2.5),
        "n_group": COUNT.otherwise(8),
        "topk_group": COUNT.otherwise(4),
        "first_k_dense_replace": integer(0, 1024).otherwise(3),
    },
    _NAMES,
    read=_read_v3,
    write=_write,
    **_SAME,
    drafters="modules in DeepSeek-V3, R1 and V3.1",
)

GLM4_MOE_LITE = Family(
    "glm4_moe_lite",
    "Glm4MoeLiteForCausalLM",
    "GLM-4.7-Flash",
    _OPTIONS
    | {
        "num_key_value_heads": HEADS.otherwise(20),
        "max_position_embeddings": POSITIONS.otherwise(202752),
        "rms_norm_eps": SIZES["rms_norm_eps"].otherwise(1e-5),
        "q_lora_rank": SIZE.optional(768),
        "qk_nope_head_dim": SIZE.otherwise(192),
        "v_head_dim": SIZE.otherwise(256),
        "n_routed_experts": COUNT.otherwise(64),
        "num_experts_per_tok": COUNT.otherwise(4),
        "moe_intermediate_size": SIZE.otherwise(1536),
        "routed_scaling_factor": number(0, 1e6).otherwise(1.8),
        "mlp_layer_types": list_of(choice("dense", "sparse")).optional(),
    },
    _NAMES,
    read=_read_v3,
    write=_write_glm,
    **_SAME,
    drafters="a module in it",
)
