"""Latent attention with experts: DeepSeek-V2 and V3 (also R1 and Kimi K2), and GLM-4.7-Flash."""

from ...errors import ConfigError
from ...models.config import ModelConfig
from ...models.feed_forwards import ExpertsConfig, GatedMlpConfig
from ...models.feed_forwards.grouped_routing import GroupedRouting
from ...models.mixers import LatentAttentionConfig
from ..blocks import INTERLEAVED
from ..fields import Field, choice, flag, integer, list_of, number
from ..rope_options import read_rope
from ..schemas import CORE, HEADS, NEVER, POSITIONS, ROTARY, SIZE, SIZES
from .base import LLAMA_LAYER, Family, model_names
from .mixtures import STACKS, TRAINING, experts_of

_NAMES = model_names(
    {path: names for path, names in LLAMA_LAYER.items() if not path.startswith("mixer.")}
    | STACKS
    | {
        "mixer.down": ["self_attn.q_a_proj.weight", f"self_attn.kv_a_proj_with_mqa.weight{INTERLEAVED}"],
        "mixer.down_bias": ["self_attn.q_a_proj.bias", f"self_attn.kv_a_proj_with_mqa.bias{INTERLEAVED}"],
        "mixer.query_norm": ["self_attn.q_a_layernorm.weight"],
        "mixer.row_norm": ["self_attn.kv_a_layernorm.weight"],
        "mixer.query": [f"self_attn.{name}.weight{INTERLEAVED}" for name in ("q_proj", "q_b_proj")],
        "mixer.up_key": ["self_attn.kv_b_proj.weight"],
        "mixer.up_value": ["self_attn.kv_b_proj.weight"],
        "mixer.out": ["self_attn.o_proj.weight"],
        "mixer.out_bias": ["self_attn.o_proj.bias"],
        "mlp.router": ["mlp.gate.weight"],
        "mlp.correction": ["mlp.gate.e_score_correction_bias"],
        "mlp.shared.gate_up": ["mlp.shared_experts.gate_proj.weight", "mlp.shared_experts.up_proj.weight"],
        "mlp.shared.down": ["mlp.shared_experts.down_proj.weight"],
    }
)

_COUNT = integer(1, 4096)
_EVEN = Field("an even number from 2 to 4096", lambda value: type(value) is int and value in range(2, 4097, 2))
_WHOLE = Field("1", lambda value: value == 1, 1.0, null=True)
_OPTIONS = (
    CORE
    | SIZES
    | ROTARY
    | {
        "attention_bias": flag(),
        "mlp_bias": NEVER,
        "rope_interleave": choice(True).otherwise(True),
        "partial_rotary_factor": _WHOLE,
        "q_lora_rank": SIZE.optional(1536),
        "kv_lora_rank": SIZE.otherwise(512),
        "qk_nope_head_dim": SIZE.otherwise(128),
        "qk_rope_head_dim": _EVEN.otherwise(64),
        "v_head_dim": SIZE.otherwise(128),
        "moe_layer_freq": integer(1, 1).otherwise(1),
        "n_routed_experts": _COUNT,
        "n_shared_experts": _COUNT.otherwise(1),
        "num_experts_per_tok": _COUNT,
        "moe_intermediate_size": SIZE,
        "routed_scaling_factor": number(0, 1e6).otherwise(1.0),
        "n_group": _COUNT.optional(),
        "topk_group": _COUNT.optional(),
        "first_k_dense_replace": integer(0, 1024).otherwise(0),
    }
)
_SIGMOID = {
    "norm_topk_prob": flag(True),
    "scoring_func": choice("sigmoid").otherwise("sigmoid"),
    "topk_method": choice("noaux_tc").otherwise("noaux_tc"),
}
_HARMLESS = TRAINING | {"aux_loss_alpha", "ep_size", "head_dim", "num_mtp_layers", "qk_head_dim", "seq_aux"}


def _read(options: dict, where: str, routing: GroupedRouting, dense: list[bool]) -> dict:
    """The fields of ModelConfig. ``dense``: for each layer whether it has the dense MLP."""
    rope = read_rope(options, options["qk_rope_head_dim"], where, 10000.0, None)
    if rope.rope_type not in ("default", "yarn"):
        within = "rope_scaling" if options["rope_scaling"] else "rope_parameters"
        raise ConfigError(f"{where}: {within}.rope_type is {rope.rope_type!r}; it must be 'default' or 'yarn'")
    mixer = LatentAttentionConfig(
        options["num_attention_heads"], options["kv_lora_rank"], options["q_lora_rank"], options["qk_nope_head_dim"],
        options["qk_rope_head_dim"], options["v_head_dim"], rope, bool(options["attention_bias"]),
    )  # fmt: skip
    width = options["moe_intermediate_size"]
    experts = ExpertsConfig(
        options["n_routed_experts"], options["num_experts_per_tok"], width, normed=bool(options["norm_topk_prob"]),
        shared=GatedMlpConfig(options["n_shared_experts"] * width), shared_gate=False, routing=routing,
    )  # fmt: skip
    if not all(dense):
        _check_groups(options, where, experts)
    mlps = tuple(None if is_dense else experts for is_dense in dense)
    return dict(rope=rope, mixers=(mixer,) * options["num_hidden_layers"], mlps=mlps)


def _check_groups(options: dict, where: str, experts: ExpertsConfig) -> None:
    """Raises ConfigError for groups from which a node's experts cannot be chosen."""
    assert experts.routing is not None
    routing, each = experts.routing, experts.count // experts.routing.groups
    if experts.count % routing.groups or each < routing.best:
        raise ConfigError(
            f"{where}: n_group is {routing.groups}; it must divide n_routed_experts, {experts.count}, into groups of at "
            f"least {routing.best}"
        )
    if routing.kept > routing.groups:
        raise ConfigError(f"{where}: topk_group is {routing.kept}; it must be at most n_group, {routing.groups}")
    if experts.chosen > routing.kept * each:
        raise ConfigError(
            f"{where}: num_experts_per_tok is {experts.chosen}; the chosen groups have {routing.kept * each} experts"
        )


def _groups(options: dict) -> dict:
    names = {"groups": "n_group", "kept": "topk_group", "factor": "routed_scaling_factor"}
    return {ours: options[theirs] or 1 for ours, theirs in names.items()}


def _first(options: dict) -> list[bool]:
    return [i < options["first_k_dense_replace"] for i in range(options["num_hidden_layers"])]


def _read_v2(options: dict, where: str) -> dict:
    groups = _groups(options)
    if options["topk_method"] == "greedy":
        groups |= dict(groups=1, kept=1)
    routing = GroupedRouting("softmax", **groups, best=1, corrected=False)
    return _read(options, where, routing, _first(options))


def _read_v3(options: dict, where: str) -> dict:
    return _read(options, where, GroupedRouting(**_groups(options)), _first(options))


def _read_glm(options: dict, where: str) -> dict:
    types, dense = options["mlp_layer_types"], _first(options)
    if types is not None and len(types) != len(dense):
        raise ConfigError(f"{where}: mlp_layer_types has {len(types)} entries; the model has {len(dense)} layers")
    dense = dense if types is None else [kind == "dense" for kind in types]
    return _read(options, where, GroupedRouting(**_groups(options)), dense)


def _write(config: ModelConfig) -> dict:
    mixer = config.mixers[0]
    assert isinstance(mixer, LatentAttentionConfig)
    written = {
        "attention_bias": mixer.bias,
        "q_lora_rank": mixer.query_rank,
        "kv_lora_rank": mixer.rank,
        "qk_nope_head_dim": mixer.key_dim,
        "v_head_dim": mixer.value_dim,
        "first_k_dense_replace": next((i for i, mlp in enumerate(config.mlps) if mlp), config.num_layers),
    }
    if not any(config.mlps):
        return written
    experts = experts_of(config)
    assert experts.routing is not None and experts.shared is not None
    return written | {
        "n_routed_experts": experts.count,
        "n_shared_experts": experts.shared.intermediate_size // experts.width,
        "num_experts_per_tok": experts.chosen,
        "moe_intermediate_size": experts.width,
        "norm_topk_prob": experts.normed,
        "routed_scaling_factor": experts.routing.factor,
        "n_group": experts.routing.groups,
        "topk_group": experts.routing.kept,
    }


def _write_v2(config: ModelConfig) -> dict:
    written = _write(config)
    return written | {"topk_method": "group_limited_greedy" if written.get("n_group", 1) > 1 else "greedy"}


def _write_glm(config: ModelConfig) -> dict:
    types = ["dense" if mlp is None else "sparse" for mlp in config.mlps]
    return {name: value for name, value in _write(config).items() if name != "first_k_dense_replace"} | {
        "mlp_layer_types": types
    }


_REFUSED = "rope scaling other than yarn"

DEEPSEEK_V2 = Family(
    "deepseek_v2",
    "DeepseekV2ForCausalLM",
    "DeepSeek-V2, V2-Lite, V2.5 and their coders",
    _OPTIONS
    | {
        "max_position_embeddings": POSITIONS.otherwise(2048),
        "n_routed_experts": _COUNT.otherwise(64),
        "n_shared_experts": _COUNT.otherwise(2),
        "moe_intermediate_size": SIZE.otherwise(1407),
        "norm_topk_prob": NEVER.otherwise(False),
        "scoring_func": choice("softmax").otherwise("softmax"),
        "topk_method": choice("greedy", "group_limited_greedy").otherwise("greedy"),
    },
    _NAMES,
    refused=_REFUSED,
    read=_read_v2,
    write=_write_v2,
    renamed={"head_dim": "qk_rope_head_dim"},
    theta=None,
    harmless=_HARMLESS,
)

DEEPSEEK_V3 = Family(
    "deepseek_v3",
    "DeepseekV3ForCausalLM",
    "DeepSeek-V3, R1, V3.1 and Kimi K2, Moonlight",
    _OPTIONS
    | _SIGMOID
    | {
        "num_key_value_heads": HEADS.optional(128),
        "max_position_embeddings": POSITIONS.otherwise(4096),
        "n_routed_experts": _COUNT.otherwise(256),
        "num_experts_per_tok": _COUNT.otherwise(8),
        "moe_intermediate_size": SIZE.otherwise(2048),
        "routed_scaling_factor": number(0, 1e6).otherwise(2.5),
        "n_group": _COUNT.otherwise(8),
        "topk_group": _COUNT.otherwise(4),
        "first_k_dense_replace": integer(0, 1024).otherwise(3),
    },
    _NAMES,
    refused=_REFUSED,
    read=_read_v3,
    write=_write,
    renamed={"head_dim": "qk_rope_head_dim"},
    theta=None,
    harmless=_HARMLESS,
)

GLM4_MOE_LITE = Family(
    "glm4_moe_lite",
    "Glm4MoeLiteForCausalLM",
    "GLM-4.7-Flash",
    _OPTIONS
    | _SIGMOID
    | {
        "num_key_value_heads": HEADS.otherwise(20),
        "max_position_embeddings": POSITIONS.otherwise(202752),
        "rms_norm_eps": SIZES["rms_norm_eps"].otherwise(1e-5),
        "q_lora_rank": SIZE.optional(768),
        "qk_nope_head_dim": SIZE.otherwise(192),
        "v_head_dim": SIZE.otherwise(256),
        "n_routed_experts": _COUNT.otherwise(64),
        "num_experts_per_tok": _COUNT.otherwise(4),
        "moe_intermediate_size": SIZE.otherwise(1536),
        "routed_scaling_factor": number(0, 1e6).otherwise(1.8),
        "n_group": _COUNT.otherwise(1),
        "topk_group": _COUNT.otherwise(1),
        "first_k_dense_replace": integer(0, 1024).otherwise(1),
        "mlp_layer_types": list_of(choice("dense", "sparse")).optional(),
    },
    _NAMES,
    refused=_REFUSED,
    read=_read_glm,
    write=_write_glm,
    renamed={"head_dim": "qk_rope_head_dim"},
    theta=None,
    harmless=_HARMLESS,
)
