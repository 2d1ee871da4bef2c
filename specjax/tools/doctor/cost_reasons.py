"""Reasons in the time of a round: verification, drafting, experts, and the temperature."""

from collections.abc import Callable

from ...models.config import ModelConfig
from ...models.feed_forwards import ExpertsConfig
from .measurements import Evidence, Reason

_GAIN = 1.2
"""A reason is named where drafting does not pay, and would be faster by this factor without it."""


def verification(evidence: Evidence) -> Reason | None:
    """Scoring the drafted tokens takes longer than scoring one, such as in a large batch."""
    share = lambda cast: f"{cast['verify_ms'] / cast['plain_ms']:.1f} plain rounds"
    text = "it is not free: it takes {}; draft fewer tokens, or in smaller batches only"
    return _expense(evidence, "verification", text, share, "verify_ms", "plain_ms")


def drafting(evidence: Evidence) -> Reason | None:
    """Drafting takes too much of a round."""
    share = lambda cast: f"{cast['draft_ms'] / cast['round_ms']:.0%} of a round"
    text = "it takes {}; use a smaller or shallower draft, or draft fewer tokens"
    return _expense(evidence, "drafting", text, share, "draft_ms", "round_ms")


def _expense(evidence: Evidence, name: str, text: str, share: Callable[[dict], str], *times: str) -> Reason | None:
    """The reason ``name``, where decoding would be faster without this part of a round.

    Args:
      text: the reason's text, with ``{}`` in place of the losses.
      share: describes the part of the round in a loss.
      times: the figures of this part.
    """
    free = f"speedup_if_{name}_were_free"
    losses = [cast for cast in evidence.losses() if cast[free] > _GAIN * cast["speedup"]]
    if not losses:
        return None
    shown = [
        f"{share(cast)} at batch {cast['batch']}, temperature {cast['temperature']:g} "
        f"(free, it would be {cast[free]:.2f} times plain)"
        for cast in losses
    ]
    return Reason(name, text.format(", ".join(shown)), _figures(losses, *times, free))


def temperature(evidence: Evidence) -> Reason | None:
    """Rounds at temperature 0 emit more tokens than at the temperature of the requests."""
    greedy = evidence.tokens_per_round.get(0.0)
    if greedy is None:
        return None

    def gain(cast: dict) -> float:
        return greedy / cast["tokens_per_round"]

    losses = [cast for cast in evidence.losses() if cast["temperature"] and gain(cast) > _GAIN]
    if not losses:
        return None
    hottest = max(losses, key=gain)
    text = (
        f"a round emits {hottest['tokens_per_round']:.2f} tokens at temperature "
        f"{hottest['temperature']:g} and {greedy:.2f} at 0; lower it if the task allows, or draft fewer tokens"
    )
    return Reason("temperature", text, {"greedy_tokens_per_round": greedy} | _figures(losses, "tokens_per_round"))


def _figures(casts: list[dict], *names: str) -> dict:
    return {"settings": [{name: cast[name] for name in ("batch", "temperature", "speedup", *names)} for cast in casts]}


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
