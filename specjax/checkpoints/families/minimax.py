"""MiniMax-M2: experts in all layers, norms of all queries and of all keys, partial rotation."""

from ...errors import ConfigError
from ...models.config import ModelConfig
from ...models.feed_forwards import ExpertsConfig
from ...models.feed_forwards.grouped_routing import GroupedRouting
from ..json_fields import choice, integer
from ..rope_options import read_rope
from ..schemas import ROPE
from .base import LLAMA_LAYER, Family, model_names
from .mixtures import STACKS, TRAINING, experts_of, local_experts, of_layers

_MODULE = "block_sparse_moe"


def _read(options: dict, where: str) -> dict:
    size, rotated = options["head_dim"], options["rotary_dim"]
    if rotated is not None and rotated > size:
        raise ConfigError(f"{where}: rotary_dim is {rotated}; it must be at most head_dim, {size}")
    share = options["partial_rotary_factor"] or (rotated or size) / size
    rope = read_rope(options | {"partial_rotary_factor": share}, size, where, 5e6, 1.0)
    experts = ExpertsConfig(
        options["num_local_experts"], options["num_experts_per_tok"], options["intermediate_size"],
        routing=GroupedRouting(),
    )  # fmt: skip
    return dict(qk_norm=True, whole_qk_norm=True, rope=rope, mlps=of_layers(options, experts, where))


def _write(config: ModelConfig) -> dict:
    experts = experts_of(config)
    return {"num_local_experts": experts.count, "num_experts_per_tok": experts.chosen}


MINIMAX_M2 = Family(
    "minimax_m2",
    "MiniMaxM2ForCausalLM",
    "MiniMax-M2, M2.1 and M2.5",
    local_experts(196608, 256, 8)
    | {
        "partial_rotary_factor": ROPE["partial_rotary_factor"],
        "rotary_dim": integer(2, 4096).optional(),
        "scoring_func": choice("sigmoid").optional(),
        "shared_intermediate_size": choice(0).optional(),
        "use_qk_norm": choice(True).optional(),
        "qk_norm_type": choice("per_layer").optional(),
        "use_routing_bias": choice(True).optional(),
    },
    model_names(
        LLAMA_LAYER
        | STACKS
        | {"mlp.router": [f"{_MODULE}.gate.weight"], "mlp.correction": [f"{_MODULE}.e_score_correction_bias"]}
    ),
    read=_read,
    write=_write,
    theta=None,
    rotated=1.0,
    harmless=TRAINING | {"attn_type_list", "mtp_transformer_layers", "num_mtp_modules", "use_mtp"},
    experts=(_MODULE, {"gate": "w1", "up": "w3", "down": "w2"}),
)
