"""A chain drawn from a part of the target: what early exits and skipped layers share.

The part reads the target's own cache, which holds what the whole target computed, and keeps the rows of its drafts beside it. The
verify pass computes the true rows, so nothing that the part said of a token outlives the round.

Below the first layer that misses a sub-layer the part *is* the target. What it computes there is kept for the verify pass, which
begins at that layer (LayerSkip, Elhoushi et al. 2024, section 4.3).

Drafting may stop where the part is unsure (Draft & Verify, Zhang et al. 2024, adaptive draft-exiting). This keeps the output exact: whether
another token is drawn depends on what was drafted before it and on the distributions those tokens came from, never on the token
itself, and the token after which a row stops is judged like any other. Given its past, every token is thus either drawn from its
q or not drawn, and the rules' proofs take a chain's end as they find it.
"""

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax

from ...models.decoder import Skip
from . import chains


@struct.dataclass
class Confidence:
    """When to stop drafting.

    Attributes:
      threshold: float32 [B]. A row stops after a token drawn where the likeliest one was less probable than this.
      matched: float32 [B], moving average of accepted / drafted.
    """

    threshold: jax.Array
    matched: jax.Array


@struct.dataclass
class State:
    """What is kept between rounds: confidence, or None for chains of full length.

    Attributes:
      begun: between draft and commit what the verify pass need not compute again, see ``Decoder``.
    """

    confidence: Confidence | None = None
    begun: tuple | None = None


def init(batch: int, threshold: float) -> State:
    """The state after the prompt; no threshold where it is 0."""
    return State(Confidence(jnp.full(batch, threshold, jnp.float32), jnp.zeros(batch)) if threshold else None)


def draft(target, skip: Skip, state, key, depth: int):
    """The tree and the state until ``commit``. ``skip``: what the part lacks of the target, at least one sub-layer."""
    n, cache, config = state.cache.length, state.cache, target.config
    first = min(skip.attention + skip.mlp)  # below it nothing is missing
    place, B, P = jnp.arange(depth + 1), n.size, depth + 1

    def read(i, token, kept, skip=skip):
        """What follows node i; ``kept`` is what enters layer ``first``, [B, P, E], and the rows [B, K, P, D], of all nodes so far."""
        entering, rows = kept
        position = (n + i)[:, None]
        seen = jnp.broadcast_to(jnp.append(place < i, True), (B, 1, P + 1))
        positions = jnp.concatenate([n[:, None] + place, position], 1)
        out = target(token, position, seen, cache, rows=rows, row_positions=positions, skip=skip, taps=(first,))
        entering = lax.dynamic_update_slice_in_dim(entering, out.taps[0], i, 1)
        rows = jax.tree.map(lambda old, new: lax.dynamic_update_slice_in_dim(old, new[:, :, -1:], i, 2), rows, out.rows)
        return out.hidden, (entering, rows)

    def follow(i, token, kept):
        hidden, kept = read(i, token, kept)
        return target.logits(hidden), kept

    room = lambda leaf: jnp.zeros((*leaf.shape[:2], P, leaf.shape[3]), leaf.dtype)
    rows = tuple(None if i in skip.attention else jax.tree.map(room, pair) for i, pair in enumerate(cache.layers))
    chain, kept = chains.begin(state, depth, config.vocab_size), (jnp.zeros((B, P, config.hidden_size)), rows)
    confidence = state.drafter.confidence
    least = None if confidence is None else confidence.threshold
    chain, (entering, rows), last = chains.grow(chain, 0, follow, kept, state, key, least)
    if first == 0:
        return chain.tree, State(confidence)
    above = tuple(range(first, config.num_layers))
    kept = entering, rows[:first] + (None,) * len(above)
    newest = lax.dynamic_slice_in_dim(chain.tokens, last, 1, 1)
    _, (entering, rows) = read(last, newest, kept, Skip(above, above))
    return chain.tree, State(confidence, (entering, rows[:first]))


def commit(state, tree, verdict, depth: int) -> State:
    """The state for the next round: the threshold follows how much was accepted, with the constants of Draft & Verify."""
    confidence = state.drafter.confidence
    if confidence is None:
        return State()
    drafted = tree.valid.sum(-1) - 1
    rate = (verdict.length - 1) / jnp.maximum(drafted, 1)
    matched = 0.5 * confidence.matched + 0.5 * rate
    change = jnp.where(matched < 0.9, 0.01, jnp.where(drafted < depth, -0.01, 0.0))
    threshold = 0.9 * confidence.threshold + 0.1 * (confidence.threshold + change)
    return State(Confidence(threshold, matched))
