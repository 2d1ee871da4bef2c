"""Reasons in the target's states: other layers, another checkpoint, and quantised weights."""

from collections.abc import Sequence
from itertools import permutations

import jax
import jax.numpy as jnp

from ...checkpoints.load import load
from ...errors import SpecjaxError
from ...heads.base import HeadModule
from ...models.quantised_weights import scheme_of
from ...parallel import mesh_of
from .distributions import Places, compare_places, read_taps
from .measurements import Evidence, Reason, if_accepted_more, mean, tokens_of

_TEXTS = 4
"""The number of texts that are read with other inputs, or with full weights."""

_TOKENS = 128
"""The number of newest tokens of each text that are read."""

_CANDIDATES = 12
"""The most choices of layers that are tried."""

_READS = 1.25
"""A head that reads its target is accepted at least this much more than with shuffled inputs."""


def head_inputs(evidence: Evidence) -> Reason | None:
    """The head reads other layers than in training, or the states of another checkpoint."""
    if not isinstance(evidence.draft, HeadModule):
        return None
    return other_taps(evidence) or other_checkpoint(evidence)


def other_taps(evidence: Evidence) -> Reason | None:
    """The head is accepted more if it reads other layers of the target, or in another order."""
    head = evidence.draft
    before = _read(evidence)
    candidates = {taps: _read(evidence, taps) for taps in other_layers(head.config.taps, head.config.target_layers)}
    best = max(candidates, key=lambda taps: mean(candidates[taps], "overlap"), default=None)
    if best is None:
        return None
    text = (
        f"the head reads the wrong layers: it is accepted with {{before:.2f}} from layers {_list(head.config.taps)} "
        f"and with {{after:.2f}} from {_list(best)}; mend the layers in the head's config.json"
    )
    return if_accepted_more("layer taps", text, before, candidates[best], "acceptance_from_other_layers", taps=best)


def other_checkpoint(evidence: Evidence) -> Reason | None:
    """The head is accepted no more with the target's hidden states than with shuffled ones.

    A head that was trained on the states of another checkpoint learns nothing from those of this
    target, and neither does an untrained head.
    """
    own = _read(evidence)
    shuffled = _read(evidence, shuffle=True)
    acceptance = mean(own, "overlap")
    shuffled_acceptance = mean(shuffled, "overlap")
    if acceptance > _READS * shuffled_acceptance:
        return None
    text = (
        f"the head does not read this target: it is accepted with {acceptance:.3f}, "
        f"and with {shuffled_acceptance:.3f} if it gets the target's hidden states in random order; "
        "it was trained for another checkpoint, or not at all"
    )
    return Reason("checkpoint", text, {"acceptance": acceptance, "acceptance_of_shuffled_states": shuffled_acceptance})


def other_layers(taps: Sequence[int], layers: int) -> list[tuple[int, ...]]:
    """Layers that a head may have been trained on instead: shifted by one or two, or permuted."""
    shifted = [tuple(tap + by for tap in taps) for by in (-1, 1, -2, 2)]
    orders = [order for order in permutations(taps) if order != tuple(taps)] if len(taps) <= 4 else [tuple(taps)[::-1]]
    return [taps for taps in (*shifted, *orders) if min(taps) >= 0 and max(taps) <= layers][:_CANDIDATES]


def _read(evidence: Evidence, taps: Sequence[int] | None = None, shuffle: bool = False) -> list[Places]:
    """The places of the newest tokens of some texts, read with other layers or in random order."""
    head = evidence.draft
    target = evidence.generator.target.model
    places = []
    for text in evidence.texts[:_TEXTS]:
        ids = tokens_of(text)[-_TOKENS:]
        inputs = read_taps(target, ids, head.config.taps if taps is None else taps)
        if shuffle:
            order = jnp.arange(inputs[0].shape[1])
            order = order.at[: len(ids)].set(jax.random.permutation(jax.random.key(0), len(ids)))
            inputs = tuple(tap[:, order] for tap in inputs)
        places.append(compare_places(target, head, ids, 1, temperature=1.0, inputs=inputs))
    return places


def _list(taps: Sequence[int]) -> str:
    return ", ".join(map(str, taps))


def quantised_target(evidence: Evidence) -> Reason | None:
    """The draft is accepted more on the same texts if the target has its full weights.

    A head reads the target's hidden states, which quantised weights shift. The full weights are
    loaded by the target's name; a checkpoint that has none gets no test.
    """
    target = evidence.generator.target
    if evidence.draft is None or scheme_of(target.model) is None:
        return None
    try:
        full = load(target.name, mesh=mesh_of(target.model)).model
    except SpecjaxError:
        return None
    if scheme_of(full) is not None:
        return None
    before, after = (
        [compare_places(model, evidence.draft, tokens_of(text), 1, temperature=1.0) for text in evidence.texts[:_TEXTS]]
        for model in (target.model, full)
    )
    text = (
        "the draft was trained on full weights: it is accepted with {before:.2f} by the quantised target and with "
        "{after:.2f} by the full one; use a form of more bits, or train the draft on the quantised target"
    )
    return if_accepted_more("quantised target", text, before, after, "acceptance_of_full_weights")
