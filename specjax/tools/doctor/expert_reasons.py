"""The reason "experts": the nodes of a round read more experts than a plain token does."""

from ...models.config import ModelConfig
from ...models.feed_forwards import ExpertsConfig
from .measurements import Evidence, Reason

_GAIN = 1.2
"""The gain without further experts from which the reason is named, where drafting does not pay."""


def experts(evidence: Evidence) -> Reason | None:
    """Drafting would be faster if a round of the method read no more experts than a plain round.

    The nodes choose experts with equal chance, see ``ExpertsConfig.expected_experts``. Without
    further experts, scoring would take the less time the fewer weights it reads, and at least a
    plain round. In a batch that reads all experts anyway, the reason never holds.
    """
    config = evidence.generator.target.config
    if not any(isinstance(mlp, ExpertsConfig) for mlp in config.mlps):
        return None
    # 1. The losses that would shrink, each with the weights of a plain round and of a drafted one.
    losses = [(cast, *_weights(config, cast["batch"], evidence.nodes)) for cast in evidence.losses()]
    losses = [loss for loss in losses if _speedup(*loss) > _GAIN * loss[0]["speedup"]]
    if not losses:
        return None
    # 2. The reason in words and figures.
    layer = next(mlp for mlp in config.mlps if isinstance(mlp, ExpertsConfig))
    shown = []
    for cast, plain, drafted in losses:
        before, after = (layer.expected_experts(cast["batch"] * nodes) for nodes in (1, evidence.nodes))
        shown.append(
            f"{after:.1f} of {layer.count} experts in place of {before:.1f} at batch {cast['batch']}, temperature "
            f"{cast['temperature']:g}, {drafted / plain:.1f} times the weights of a plain round"
        )
    text = f"the {evidence.nodes} nodes of a round read {', '.join(shown)}; draft fewer tokens"
    names = ("batch", "temperature", "speedup")
    settings = [
        {name: cast[name] for name in names} | {"weights_read": drafted / plain} for cast, plain, drafted in losses
    ]
    return Reason("experts", text, {"nodes": evidence.nodes, "settings": settings})


def _weights(config: ModelConfig, batch: int, nodes: int) -> tuple[float, float]:
    """The weights that a plain round and a round of ``nodes`` nodes read."""
    table = 0 if config.tie_embeddings else config.vocab_size * (config.embed_size or config.hidden_size)

    def read(count: int) -> float:
        unread = sum(
            3 * config.hidden_size * mlp.width * (mlp.count - mlp.expected_experts(count))
            for mlp in config.mlps
            if isinstance(mlp, ExpertsConfig)
        )
        return config.num_weights - table - unread

    return read(batch), read(batch * nodes)


def _speedup(cast: dict, plain: float, drafted: float) -> float:
    """The speed-up if the nodes read as many experts as those of a plain round."""
    verify = max(cast["verify_ms"] * plain / drafted, min(cast["plain_ms"], cast["verify_ms"]))
    return cast["speedup"] * cast["round_ms"] / (cast["round_ms"] - cast["verify_ms"] + verify)
