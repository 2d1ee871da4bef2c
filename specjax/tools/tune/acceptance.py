"""Measures the acceptance of children by their rank.

The search for a tree needs no other fact about the models and the text.
"""

import dataclasses
from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import lax

from ...checkpoints.load import LanguageModel
from ...core.sampling import probabilities, sampling_params
from ...core.verdict import normalise, residual
from ...drafters import TokenRecycling
from ...text.generator import Generator
from ...text.result import Result

RANKS = 16
"""The number of children of a node whose acceptance is measured."""

_PLACES = 64
"""The number of places of a text whose logits are in memory at once."""


@dataclasses.dataclass(frozen=True, eq=False)
class Acceptance:
    """The numbers of children tried and accepted, by rank.

    A child of rank r is tried where its siblings of lower ranks were rejected. Where the rule is
    random, the numbers are sums of probabilities given p and q, not counts of one run.

    Attributes:
      tried, accepted: float64 [K], over all places of the text.
      tried_at, accepted_at: float64 [D, K], the same by depth: row d counts the places that a round
        reaches by accepting d tokens.
    """

    tried: np.ndarray
    accepted: np.ndarray
    tried_at: np.ndarray
    accepted_at: np.ndarray

    @property
    def P(self) -> np.ndarray:
        """[K]: the probability that a child that is tried is accepted (Sequoia, section 4.1)."""
        return _ratio(self.accepted, self.tried)

    @property
    def P_at(self) -> np.ndarray:
        """[D, K]: ``P`` by the depth of the parent."""
        return _ratio(self.accepted_at, self.tried_at)

    @property
    def chance(self) -> np.ndarray:
        """[K]: the probability that the child of a rank is the child that the rule accepts.

        The search multiplies it along paths.
        """
        return _ratio(self.accepted, self.tried[:1])

    @property
    def chance_at(self) -> np.ndarray:
        """[D, K]: ``chance`` by the depth of the parent."""
        return _ratio(self.accepted_at, self.tried_at[:, :1])

    @property
    def deviation(self) -> np.ndarray:
        """[K]: one standard deviation of ``P``; 1 where no child was tried.

        It assumes that the places of a text are independent.
        """
        variance = _ratio(self.P * (1 - self.P), self.tried)
        return np.where(self.tried > 0, np.sqrt(variance), 1.0)


def of_draft(
    target: LanguageModel,
    draft: LanguageModel,
    texts: Sequence[Result],
    *,
    temperature: float = 0.0,
    draft_temperature: float | None = None,
    draft_top_k: int = 0,
    draft_top_p: float = 1.0,
    depth: int = 8,
    ranks: int = RANKS,
) -> Acceptance:
    """The acceptance of a draft's tokens on texts that the target wrote at ``temperature``.

    At temperature 0 the children are the draft's likeliest tokens. Above it they are drawn without
    replacement. Both models read each text once, because the draft's proposal depends on the text
    alone. Every place serves as the root of a round. A place counts at depth d with the probability
    that the d tokens before it were accepted, given that they were emitted.

    Args:
      target: the model that wrote the texts.
      draft: the model that drafts.
      texts: results of the target, with their prompts.
      temperature: the temperature of the texts and of later requests.
      draft_temperature: the temperature at which the draft draws; by default that of the texts.
      draft_top_k, draft_top_p: the tokens among which the draft draws; by default all.
      depth: the depth of the deepest tree in the search.
      ranks: the number of children of a node whose acceptance is measured.
    """
    # 1. The sampling options, and the length to which all texts are padded.
    ranks = min(ranks, target.config.vocab_size)
    longest = max(len(text.prompt_token_ids) + len(text.token_ids) for text in texts)
    size = -(-longest // _PLACES) * _PLACES
    options = sampling_params(1, temperature)
    draft_temperature = temperature if draft_temperature is None else draft_temperature
    draft_options = sampling_params(1, draft_temperature, top_k=draft_top_k, top_p=draft_top_p)
    # 2. The sums over the places of all texts.
    tried = np.zeros(ranks)
    accepted = np.zeros(ranks)
    by_depth = np.zeros((2, depth, ranks))
    for i, text in enumerate(texts):
        ids = [*text.prompt_token_ids, *text.token_ids]
        first = len(text.prompt_token_ids) - 1
        last = len(ids) - 1
        tokens = jnp.asarray(np.pad(ids, (0, size - len(ids))), jnp.int32)
        key = jax.random.fold_in(jax.random.key(0), i)
        inputs = (target.model, draft.model, tokens, jnp.int32(first + 1), options, draft_options, key)
        results = _read(*inputs, ranks=ranks, greedy=temperature == 0)
        tried_here, accepted_here, as_emitted = (np.asarray(x, np.float64)[first:last] for x in results)
        tried += tried_here.sum(0)
        accepted += accepted_here.sum(0)
        by_depth += _by_depth(tried_here, accepted_here, as_emitted, depth)
    return Acceptance(tried, accepted, *by_depth)


def of_recycling(
    target: LanguageModel,
    prompts: Sequence,
    *,
    temperature: float = 0.0,
    max_new_tokens: int = 128,
    drafter: TokenRecycling = TokenRecycling(),  # noqa: B008 (frozen)
) -> Acceptance:
    """The acceptance of token recycling's successors by their rank, in a run of the real loop.

    The run uses the drafter's own tree, because the quality of its table depends on the nodes that
    the target scores.
    """
    generator = Generator(target, "token_recycling")
    generator.session.drafter = CountingRecycling(drafter.tree, drafter.candidates)
    decoding = generator.start(prompts, temperature=temperature, max_new_tokens=max_new_tokens, ignore_eos=True)
    generator.session.advance(decoding)
    counts = decoding.state.drafter
    tried_at, accepted_at = (np.asarray(x, np.float64).sum(0) for x in (counts.tried, counts.accepted))
    return Acceptance(tried_at.sum(0), accepted_at.sum(0), tried_at, accepted_at)


class _Counts(struct.PyTreeNode):
    """The state of ``CountingRecycling``.

    Attributes:
      table: int32 [B, V, K], the table of token recycling.
      tried, accepted: float32 [B, D, K], the numbers of tried and accepted children.
    """

    table: jax.Array
    tried: jax.Array
    accepted: jax.Array


@dataclasses.dataclass(frozen=True)
class CountingRecycling(TokenRecycling):
    """Token recycling that counts the rank of each emitted token in the table.

    Every emitted token follows one node of the accepted path, so each place of the text counts
    once.
    """

    def init(self, target, draft, tokens, lengths, taps, *, chunk, dtype):
        table = super().init(target, draft, tokens, lengths, taps, chunk=chunk, dtype=dtype)
        nothing = jnp.zeros((tokens.shape[0], self.depth + 1, self.candidates))
        return _Counts(table, nothing, nothing)

    def propose(self, target, draft, state, key):
        tree, table = super().propose(target, draft, state.replace(drafter=state.drafter.table), key)
        return tree, state.drafter.replace(table=table)

    def commit(self, target, draft, state, tree, scored, verdict):
        def at_path(leaf: jax.Array) -> jax.Array:
            return jax.vmap(lambda row, path: row[path])(leaf, verdict.path)

        p = probabilities(at_path(scored.logits), state.request.sampling)
        successors = jax.vmap(lambda table, tokens: table[tokens])(state.drafter.table, at_path(tree.tokens))
        emitted = (jnp.arange(self.depth + 1) < verdict.length[:, None])[..., None]  # a finished row emits none
        tried, accepted = (jnp.where(emitted, x, 0) for x in jax.vmap(jax.vmap(_try_chosen))(p, successors))
        table = super().commit(target, draft, state.replace(drafter=state.drafter.table), tree, scored, verdict)
        return _Counts(table, state.drafter.tried + tried, state.drafter.accepted + accepted)


@partial(jax.jit, static_argnames=("ranks", "greedy"))
def _read(target, draft, tokens, prompt, options, draft_options, key, *, ranks: int, greedy: bool):
    """Tried and accepted float32 [S, K] at every place of a text.

    The third result is float32 [S]: the probability that the text's own next token was an accepted
    child.
    """
    S = tokens.size
    positions = jnp.arange(S)[None]
    mask = jnp.tril(jnp.ones((S, S), bool))

    def read(model) -> jax.Array:
        return model(tokens[None], positions, mask, rope_lengths=jnp.maximum(positions + 1, prompt)).hidden[0]

    def piece(rows):
        hidden, draft_hidden, emitted, keys = rows
        p = probabilities(target.logits(hidden)[None], options)[0]
        logits = draft.logits(draft_hidden)
        if greedy:
            children = lax.top_k(logits, ranks)[1]
            return *jax.vmap(_try_chosen)(p, children), jnp.float32((children == emitted[:, None]).any(1))
        q = probabilities(logits[None], draft_options)[0]
        tried, accepted, as_emitted = jax.vmap(_try_drawn, (0, 0, 0, 0, None))(p, q, emitted, keys, ranks)
        return tried, accepted, as_emitted.sum(1) / jax.vmap(jnp.take)(p, emitted)

    places = (read(target), read(draft), jnp.roll(tokens, -1), jax.random.split(key, S))
    pieces = jax.tree.map(lambda x: x.reshape(-1, _PLACES, *x.shape[1:]), places)
    return jax.tree.map(lambda x: x.reshape(S, *x.shape[2:]), lax.map(piece, pieces))


def _try_chosen(p: jax.Array, children: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Tried and accepted [K] of chosen children [K], -1 for a missing child.

    A child is accepted if a sample of the target equals it.
    """
    accepted = jnp.where(children < 0, 0, p[jnp.maximum(children, 0)])
    return 1 - (jnp.cumsum(accepted) - accepted), accepted


def _try_drawn(
    p: jax.Array, q: jax.Array, token: jax.Array, key: jax.Array, ranks: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Tried and accepted [K] of children drawn from q without replacement, by recursive rejection.

    The third result [K] is the probability that a child is accepted and equals ``token``.

    A child drawn from q is accepted with probability sum of min(r, q), where r is the residual of p
    after the rejections so far. Only rejected children are drawn here, from norm(max(q - r, 0)). So
    the first rank is exact, and the others are estimates over the rejected tokens.
    """

    def child(carry, key):
        r, q, tried = carry
        overlap = jnp.minimum(r, q)
        chance = jnp.minimum(overlap.sum(), 1)
        rejected = jax.random.categorical(key, jnp.log(jnp.maximum(q - r, 0)))
        onward = (residual(r, q), normalise(q.at[rejected].set(0)), tried * (1 - chance))
        return onward, (tried, tried * chance, tried * overlap[token])

    return lax.scan(child, (p, q, jnp.float32(1)), jax.random.split(key, ranks))[1]


def _by_depth(tried: np.ndarray, accepted: np.ndarray, as_emitted: np.ndarray, depth: int) -> np.ndarray:
    """Tried and accepted by depth, [2, D, K], from those of a text's places, [S, K].

    ``as_emitted`` [S] is the probability that the text's own token was an accepted child.
    """
    reached = np.ones(len(as_emitted))
    counts = np.zeros((2, depth, tried.shape[1]))
    for d in range(min(depth, len(as_emitted))):
        roots = len(as_emitted) - d  # the number of roots with d more places after them
        counts[0, d] = reached[:roots] @ tried[d:]
        counts[1, d] = reached[:roots] @ accepted[d:]
        reached = reached[:roots] * as_emitted[d:]
    return counts


def _ratio(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.divide(a, b, out=np.zeros(np.broadcast_shapes(np.shape(a), np.shape(b))), where=b > 0)
