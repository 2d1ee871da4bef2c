"""The reasons "text" and "capacity": the draft does not know the texts, or predicts too little."""

from collections.abc import Sequence

import numpy as np

from ..plan.plan import break_even
from .distributions import Places
from .measurements import Evidence, Reason, mean

_STRANGER = 1.25
"""The least ratio of the draft's divergence on an unseen text to that on the target's own text."""

_WORSE = 0.8
"""The largest ratio of the acceptance on an unseen text to that on the target's own text."""


def unseen_text(evidence: Evidence) -> Reason | None:
    """The draft is farther from the target on the user's text than on the target's own.

    The target's own surprise is the control: a text that is as hard for the target does not raise
    the divergence between both.
    """
    if not evidence.user or not evidence.own:
        return None
    ratio = _least_ratio(evidence.user, evidence.own)
    acceptance = mean(evidence.user, "overlap")
    own_acceptance = mean(evidence.own, "overlap")
    if ratio < _STRANGER or acceptance > _WORSE * own_acceptance:
        return None
    figures = {
        name: {field: mean(places, field) for field in ("overlap", "divergence", "surprise", "draft_surprise")}
        for name, places in (("user", evidence.user), ("own", evidence.own))
    }
    text = (
        f"the draft does not know these texts: it is accepted with {acceptance:.2f} on them and with "
        f"{own_acceptance:.2f} on the target's own text; its surprise grows by "
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
    depth = evidence.generator.drafter.depth
    needed = min(_least_acceptance(cast, depth) for cast in casts)
    acceptance = mean(evidence.user, "overlap")
    own_acceptance = mean(evidence.own, "overlap")
    if max(acceptance, own_acceptance) >= needed:
        return None
    divergence = mean(evidence.own, "divergence")
    text = (
        f"the draft predicts too little: it is accepted with {acceptance:.2f} on these texts and with "
        f"{own_acceptance:.2f} on the target's own, where both should know the text, and it is {divergence:.1f} nats a "
        f"token from the target; {needed:.2f} would pay if verification were free; use a larger or better trained draft"
    )
    figures = {"user": acceptance, "own": own_acceptance, "divergence": divergence, "least_acceptance": needed}
    return Reason("capacity", text, figures)


def _least_acceptance(cast: dict, depth: int) -> float:
    """The acceptance from which a chain would pay if verification were free; 1 if none suffices."""
    acceptance = break_even(cast["plain_ms"] / (cast["plain_ms"] + cast["draft_ms"]), depth)
    return 1.0 if acceptance is None else acceptance


def _least_ratio(user: Sequence[Places], own: Sequence[Places]) -> float:
    """The divergence on ``user`` over that on ``own``: the lower bound of 95 % over texts."""
    from scipy.stats import bootstrap  # a second of imports

    data = [np.array([places.divergence.mean() for places in texts]) for texts in (user, own)]
    if min(map(len, data)) < 2:
        return float(data[0].mean() / data[1].mean())

    def ratio(a: np.ndarray, b: np.ndarray, axis: int = -1) -> np.ndarray:
        return a.mean(axis) / b.mean(axis)

    result = bootstrap(data, ratio, vectorized=True, n_resamples=1000, method="percentile", rng=0)
    return float(result.confidence_interval.low)
