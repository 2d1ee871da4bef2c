"""The statistics of method auto after a round: acceptance, tests, probes and calibration."""

import jax.numpy as jnp

from ...core.state import DecodeState
from ...core.tree import Tree
from ...core.verdict import Verdict
from ...models.base import Scored
from ..parts.running_acceptance import tally
from .constants import CONSTANTS
from .probes import confidence
from .rates import MATCHES, RATES, tally_model
from .state import AutoState


def update_statistics(
    state: DecodeState,
    tree: Tree,
    scored: Scored,
    verdict: Verdict,
    *,
    depth: int,
    has_model: bool,
    draws: bool,
    is_tree: bool,
) -> AutoState:
    """The method's state between rounds, with the statistics of this round.

    The states of its models are those before the round.

    Args:
      state: the batch before the round's commit, with the round's ``Prepared``.
      tree, scored, verdict: the round, as in ``Drafter.commit``.
      depth: the longest path of the round's shape, in edges.
      has_model: whether some arm has the model.
      draws: whether the model may draft in a round of this shape.
      is_tree: whether the shape is that of a tree.
    """
    own = state.drafter
    prepared = own.prepared
    probing = own.probing
    tests = own.tests
    looked_up = prepared.looked_up[:, : depth + 1]  # the last one is tested by the bonus token
    accepted, tested = tally(looked_up, jnp.where(prepared.matched > 0, looked_up.shape[1], 0), tree, verdict)
    source = jnp.arange(1, RATES + 1) == prepared.matched[:, None]
    accepted, tested = (jnp.where(source, x[:, None], 0) for x in (accepted, tested))
    if draws:
        sampled = state.request.sampling.temperature > 0
        of_model = tally_model(tree, verdict, prepared.from_model, sampled, prepared.count)
        accepted, tested = (x.at[:, MATCHES:].set(rates) for x, rates in zip((accepted, tested), of_model))
        tests += jnp.where(state.done[:, None, None], 0, jnp.stack(of_model, 2)[:, :2])
        probing = probing.tried(prepared.from_model, jnp.maximum(verdict.length - 1, 0) == prepared.count)
    acceptance = own.acceptance.update(accepted, tested)
    calibration = own.calibration
    if calibration is not None:
        calibration = calibration.after(prepared.arm, verdict.length, prepared.expected)
    if has_model:
        idle = jnp.stack([jnp.bool(False)] * MATCHES + [~prepared.ran] * 2 + [jnp.bool(not is_tree)])
        acceptance = acceptance.fade(idle, CONSTANTS.idle_memory)
        probing = probing if draws else probing.tried(jnp.zeros_like(prepared.from_model), False)
        probing = probing.observe(confidence(scored.logits, verdict))
    since_near = jnp.where(prepared.near, 0, own.since_near + 1)
    return AutoState(own.models, acceptance, tests, probing, calibration, since_near)
