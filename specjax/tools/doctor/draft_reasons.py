"""Reasons in what the draft knows: the text, and its capacity."""

from collections.abc import Sequence

import numpy as np

from ..plan.plan import break_even
from .distributions import Places
from .measurements import Evidence, Reason, mean

_STRANGER, _WORSE = 1.25, 0.8
"""On a text that it has never seen, the draft's divergence is at least this much larger, and its
acceptance at most this much of that on the target's own text."""


def unseen_text(evidence: Evidence) -> Reason | None:
    """The draft is farther from the target on the user's text than on the target's own.

    The target's own surprise is the control: a text that is as hard for the target does not raise
    the divergence between both.
    """
    if not evidence.user or not evidence.own:
        return None
    ratio = _least_ratio(evidence.user, evidence.own)
    accepted = mean(evidence.user, "overlap"), mean(evidence.own, "overlap")
    if ratio < _STRANGER or accepted[0] > _WORSE * accepted[1]:
        return None
    figures = {
        name: {field: mean(places, field) for field in ("overlap", "divergence", "surprise", "draft_surprise")}
        for name, places in (("user", evidence.user), ("own", evidence.own))
    }
    text = (
        f"the draft does not know these texts: it is accepted with {accepted[0]:.2f} on them and with "
        f"{accepted[1]:.2f} on the target's own text; its surprise grows by "
        f"{figures['user']['draft_surprise'] - figures['own']['draft_surprise']:+.2f} nats a token and the target's by "
        f"{figures['user']['surprise'] - figures['own']['surprise']:+.2f}; train the draft on such texts"
    )
    return Reason("text", text, figures)


def capacity(evidence: Evidence) -> Reason | None:
    """The draft is too far from the target on every text, even if verification were free.

    ``reasons.find_reasons`` leaves this reason out where it names a special one.
    """
    casts = [cast for cast in evidence.losses() if cast["speedup_if_verification_were_free"] < 1]
    if not evidence.own or not casts:
        return None
    needed = min(map(_least_acceptance, casts, [evidence.generator.drafter.depth] * len(casts)))
    accepted = mean(evidence.user, "overlap"), mean(evidence.own, "overlap")
    if max(accepted) >= needed:
        return None
    divergence = mean(evidence.own, "divergence")
    text = (
        f"the draft predicts too little: it is accepted with {accepted[0]:.2f} on these texts and with "
        f"{accepted[1]:.2f} on the target's own, where both should know the text, and it is {divergence:.1f} nats a "
        f"token from the target; {needed:.2f} would pay if verification were free; use a larger or better trained draft"
    )
    figures = {"user": accepted[0], "own": accepted[1], "divergence": divergence, "least_acceptance": needed}
    return Reason("capacity", text, figures)


def _least_acceptance(cast: dict, depth: int) -> float:
    """The acceptance from which a chain would pay if verification were free; 1 if none suffices."""
    found = break_even(cast["plain_ms"] / (cast["plain_ms"] + cast["draft_ms"]), depth)
    return 1.0 if found is None else found


def _least_ratio(user: Sequence[Places], own: Sequence[Places]) -> float:
    """The divergence on ``user`` over that on ``own``: the lower 95 % bootstrap bound over texts."""
    from scipy.stats import bootstrap  # a second of imports

    data = [np.array([places.divergence.mean() for places in texts]) for texts in (user, own)]
    if min(map(len, data)) < 2:
        return float(data[0].mean() / data[1].mean())
    ratio = lambda a, b, axis=-1: a.mean(axis) / b.mean(axis)
    found = bootstrap(data, ratio, vectorized=True, n_resamples=1000, method="percentile", rng=0)
    return float(found.confidence_interval.low)
