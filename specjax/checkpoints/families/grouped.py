"""Experts that are routed in groups: their options and tensors, for families with any attention."""

from typing import Any

from ...errors import ConfigError
from ...models.config import ModelConfig
from ...models.feed_forwards import ExpertsConfig, GatedMlpConfig
from ...models.feed_forwards.grouped_routing import GroupedRouting
from ..json_fields import choice, flag, integer, number
from ..schemas import SIZE
from .mixtures import STACKS, TRAINING, experts_of

COUNT = integer(1, 4096)

GROUPED = {
    "moe_layer_freq": integer(1, 1).otherwise(1),
    "n_routed_experts": COUNT,
    "n_shared_experts": COUNT.otherwise(1),
    "num_experts_per_tok": COUNT,
    "moe_intermediate_size": SIZE,
    "routed_scaling_factor": number(0, 1e6).otherwise(1.0),
    "n_group": COUNT.otherwise(1),
    "topk_group": COUNT.otherwise(1),
    "first_k_dense_replace": integer(0, 1024).otherwise(1),
    "norm_topk_prob": flag(True),
    "scoring_func": choice("sigmoid").otherwise("sigmoid"),
    "topk_method": choice("noaux_tc").otherwise("noaux_tc"),
}
"""The options of DeepSeek-V3's experts."""

GROUPED_HARMLESS = TRAINING | {"aux_loss_alpha", "ep_size", "num_mtp_layers", "seq_aux"}
"""Options of these experts that do not change the maths."""

GROUPED_LAYER = STACKS | {
    "mlp.router": ["mlp.gate.weight"],
    "mlp.correction": ["mlp.gate.e_score_correction_bias"],
    "mlp.shared.gate_up": ["mlp.shared_experts.gate_proj.weight", "mlp.shared_experts.up_proj.weight"],
    "mlp.shared.down": ["mlp.shared_experts.down_proj.weight"],
}
"""The tensors of each parameter of these experts."""


def read_routing(options: dict, **changes) -> GroupedRouting:
    """DeepSeek-V3's routing, with ``changes``."""
    names = {"groups": "n_group", "kept": "topk_group", "factor": "routed_scaling_factor"}
    fields: dict[str, Any] = {ours: options[theirs] or 1 for ours, theirs in names.items()}
    return GroupedRouting(**(fields | changes))


def read_experts(options: dict, where: str, routing: GroupedRouting) -> tuple[ExpertsConfig | None, ...]:
    """For each layer the experts, or None for the dense MLP.

    ``mlp_layer_types`` goes before ``first_k_dense_replace``. Raises ConfigError for groups from
    which a node's experts cannot be chosen.
    """
    layers, types, width = range(options["num_hidden_layers"]), options.get("mlp_layer_types"), "moe_intermediate_size"
    if types is not None and len(types) != len(layers):
        raise ConfigError(f"{where}: mlp_layer_types has {len(types)} entries; the model has {len(layers)} layers")
    dense = [i < options["first_k_dense_replace"] if types is None else types[i] == "dense" for i in layers]
    experts = ExpertsConfig(
        options["n_routed_experts"], options["num_experts_per_tok"], options[width],
        normed=bool(options["norm_topk_prob"]), shared=GatedMlpConfig(options["n_shared_experts"] * options[width]),
        shared_gate=False, routing=routing,
    )  # fmt: skip
    if not all(dense):
        _check_groups(routing, experts, where)
    return tuple(None if is_dense else experts for is_dense in dense)


def write_experts(config: ModelConfig) -> dict:
    """The options from which ``read_experts`` reads the same experts."""
    first = next((i for i, mlp in enumerate(config.mlps) if mlp), config.num_layers)
    if not any(config.mlps):
        return {"first_k_dense_replace": first}
    experts = experts_of(config)
    assert experts.routing is not None and experts.shared is not None
    return {
        "first_k_dense_replace": first,
        "n_routed_experts": experts.count,
        "n_shared_experts": experts.shared.intermediate_size // experts.width,
        "num_experts_per_tok": experts.chosen,
        "moe_intermediate_size": experts.width,
        "norm_topk_prob": experts.normed,
        "routed_scaling_factor": experts.routing.factor,
        "n_group": experts.routing.groups,
        "topk_group": experts.routing.kept,
    }


def _check_groups(routing: GroupedRouting, experts: ExpertsConfig, where: str) -> None:
    each = experts.count // routing.groups
    if experts.count % routing.groups or each < routing.best:
        raise ConfigError(
            f"{where}: n_group is {routing.groups}; it must divide n_routed_experts, {experts.count}, in groups of at "
            f"least {routing.best}"
        )
    if routing.kept > routing.groups:
        raise ConfigError(f"{where}: topk_group is {routing.kept}; it must be at most n_group, {routing.groups}")
    if experts.chosen > routing.kept * each:
        raise ConfigError(
            f"{where}: num_experts_per_tok is {experts.chosen}; the chosen groups have {routing.kept * each} experts"
        )
