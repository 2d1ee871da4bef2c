"""Reasons in the time of a round: verification, drafting, and the temperature of the requests."""

from .measurements import Evidence, Reason

_GAIN = 1.2
"""A reason is named where drafting does not pay, and would be faster by this factor without it."""


def verification(evidence: Evidence) -> Reason | None:
    """Scoring the drafted tokens takes longer than scoring one, such as in a large batch."""
    free = "speedup_if_verification_were_free"
    losses = [cast for cast in evidence.losses() if cast[free] > _GAIN * cast["speedup"]]
    if not losses:
        return None
    shown = [
        f"{cast['verify_ms'] / cast['plain_ms']:.1f} plain rounds at batch {cast['batch']}, temperature "
        f"{cast['temperature']:g} (free, it would be {cast[free]:.2f} times plain)"
        for cast in losses
    ]
    text = f"it is not free: it takes {', '.join(shown)}; draft fewer tokens, or in smaller batches only"
    return Reason("verification", text, _figures(losses, "verify_ms", "plain_ms", free))


def drafting(evidence: Evidence) -> Reason | None:
    """Drafting takes too much of a round."""
    free = "speedup_if_drafting_were_free"
    losses = [cast for cast in evidence.losses() if cast[free] > _GAIN * cast["speedup"]]
    if not losses:
        return None
    shown = [
        f"{cast['draft_ms'] / cast['round_ms']:.0%} of a round at batch {cast['batch']}, temperature "
        f"{cast['temperature']:g} (free, it would be {cast[free]:.2f} times plain)"
        for cast in losses
    ]
    text = f"it takes {', '.join(shown)}; use a smaller or shallower draft, or draft fewer tokens"
    return Reason("drafting", text, _figures(losses, "draft_ms", "round_ms", free))


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
