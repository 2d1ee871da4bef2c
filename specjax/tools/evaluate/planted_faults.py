"""Known wrong ways to verify. Published code has each of them.

``specjax verify --inject`` and the tests plant them, to show that the checks find them.
"""

import dataclasses
from unittest import mock

import jax
import jax.numpy as jnp
from jax import random

from ...core.checks import check_known
from ...core.sampling import probabilities, sample
from ...core.tree import Tree
from ...core.verdict import Verdict, q_of
from ...drafters import DraftModel
from ...drafters.parts import chains
from ...errors import RequestError
from ...loop.drafter import Drafter

FAULTS = ("equality-residual", "q-before-top-p", "softmax-q-for-argmax", "ratio-epsilon")

_EPSILON = 0.1
"""An epsilon that is large enough to show in a few thousand draws.

Published code has smaller ones. They are equally wrong.
"""


def plant(fault: str, drafter: Drafter, rule):
    """A drafter and a rule that are wrong in one way.

    Raises RequestError for an unknown fault or a drafter without a q.
    """
    check_known("fault", fault, FAULTS)
    options = dataclasses.asdict(drafter)
    if options.keys() != {field.name for field in dataclasses.fields(DraftModel)}:
        raise RequestError(f"fault {fault!r} needs drafts drawn from a model; use method 'draft_model'")
    if fault == "q-before-top-p":
        return _Untruncated(**options), rule
    if fault == "softmax-q-for-argmax":
        return _Argmax(**options), rule
    return drafter, _equality_residual if fault == "equality-residual" else _ratio_epsilon


@dataclasses.dataclass(frozen=True)
class _Untruncated(DraftModel):
    """Draws tokens after top-k, top-p and min-p, but reports the q before them."""

    def propose(self, target, draft, state, key, least=None):
        options = state.request.sampling
        cut = options.replace(temperature=jnp.float32(options.temperature > 0))  # q already has the temperature.

        def truncated(keys, q, _):
            return sample(keys, probabilities(jnp.log(q)[:, None], cut)[:, 0], options)

        loose = options.replace(
            top_k=jnp.zeros_like(options.top_k), top_p=jnp.ones_like(options.top_p), min_p=jnp.zeros_like(options.min_p)
        )
        with mock.patch.object(chains, "sample", truncated):
            tree, pending = super().propose(
                target, draft, state.replace(request=state.request.replace(sampling=loose)), key
            )
        return tree, pending


@dataclasses.dataclass(frozen=True)
class _Argmax(DraftModel):
    """Takes the likeliest token, but reports the q of a random draw."""

    def propose(self, target, draft, state, key, least=None):
        with mock.patch.object(chains, "sample", lambda keys, q, _: jnp.argmax(q, -1).astype(jnp.int32)):
            return super().propose(target, draft, state, key)


def _equality_residual(p: jax.Array, tree: Tree, key: jax.Array) -> Verdict:
    """Accepts a draft only if it equals a draw from p, and draws from the residual otherwise."""
    expected_key, bonus_key = random.split(key[0])
    expected = random.categorical(expected_key, jnp.log(p))
    return _chain(tree.tokens[1:] == expected[:-1], p, tree, bonus_key)


def _ratio_epsilon(p: jax.Array, tree: Tree, key: jax.Array) -> Verdict:
    """Adds an epsilon to the denominator of the ratio, to avoid a division by zero."""
    accept_key, bonus_key = random.split(key[0])

    def of_next(law: jax.Array) -> jax.Array:
        return jnp.take_along_axis(law[:-1], tree.tokens[1:, None], -1)[:, 0]

    is_accepted = random.uniform(accept_key, tree.tokens[1:].shape) <= of_next(p) / (of_next(q_of(tree)) + _EPSILON)
    return _chain(is_accepted, p, tree, bonus_key)


def _chain(is_accepted: jax.Array, p: jax.Array, tree: Tree, key: jax.Array) -> Verdict:
    last = jnp.cumprod(is_accepted & tree.valid[1:]).sum()
    residual = jnp.maximum(p[last] - q_of(tree)[last], 0)
    bonus = random.categorical(key, jnp.log(jnp.where(residual.sum() > 0, residual, p[last])))
    return Verdict(jnp.minimum(jnp.arange(tree.max_depth + 1), last), last + 1, bonus)
