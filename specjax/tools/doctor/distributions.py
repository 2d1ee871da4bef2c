"""Reads a text with target and draft, and compares their distributions at every place.

Both read the text once, because their distributions depend on the text alone (teacher forcing). A
place is the root of a round: the target and the first drafted token both predict the next token.
"""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ...core.sampling import SamplingParams, probabilities, sampling_params
from ...heads import BlockHead
from ...heads.base import HeadModule
from ...heads.training_forward import read_target, unroll
from ...models.decoder import Decoder
from ...training.kinds.block import run_blocks

_SIZE = 128
"""Texts are padded to a multiple of this number, so that few programs are compiled."""

_PIECE = 64
"""The number of places whose logits are in memory at once."""

_UNIFORM = 0.01
"""The share of a uniform distribution in q, which gives a token without draft a finite cost."""


@dataclasses.dataclass(frozen=True)
class Places:
    """Target and draft at n places of a text, all float64 [n].

    Attributes:
      overlap: the chance that a token drawn from q is accepted, the sum of min(p, q). At
        temperature 0 it is 1 where the likeliest tokens are the same, else 0.
      accepted: the chance that the text's own next token was an accepted draft, given that it was
        emitted: min(1, q / p) of this token.
      rank: the number of tokens that the draft finds likelier than the text's next token.
      divergence: the Kullback-Leibler divergence of q from p in nats, at temperature 1.
      surprise, draft_surprise: -log p and -log q of the text's next token, at temperature 1.
    """

    overlap: np.ndarray
    accepted: np.ndarray
    rank: np.ndarray
    divergence: np.ndarray
    surprise: np.ndarray
    draft_surprise: np.ndarray

    @staticmethod
    def join(parts: Sequence["Places"]) -> "Places":
        """The places of several texts, one after another."""
        return Places(*map(np.concatenate, zip(*map(dataclasses.astuple, parts))))

    def cut(self, begin: int | None, end: int | None) -> "Places":
        """The places from ``begin`` to ``end``, excluded."""
        return Places(*(column[begin:end] for column in dataclasses.astuple(self)))


def compare_places(
    target: Decoder,
    draft,
    ids: Sequence[int],
    first: int,
    *,
    temperature: float = 0.0,
    inputs: tuple | None = None,
    seen: Sequence[int] | None = None,
) -> Places:
    """Compares target and draft at the places of a text from token ``first`` on.

    Args:
      draft: a model of the target's vocabulary, or the module of a head.
      first: the index of the first root. The last root is the last token but one.
      temperature: the temperature of ``overlap`` and ``accepted``.
      inputs: what a head reads of the target, see ``read_taps``; by default the taps of its
        configuration.
      seen: what the draft reads in place of ``ids``. Both must end with the same tokens.
    """
    # 1. The hidden states of the target and of the draft at the roots.
    first = max(first, 1)  # A head reads the feature of the token before the root.
    count = len(ids) - 1 - first
    tokens = pad(ids)
    hidden = _hidden(target, tokens)[first : first + count]
    if isinstance(draft, HeadModule):
        taps = read_taps(target, ids, draft.config.taps) if inputs is None else inputs
        drafted = _head_hidden(draft, target, tokens, taps)[first : first + count]
    else:
        read = ids if seen is None else seen
        begin = first + len(read) - len(ids)
        drafted = _hidden(draft, pad(read))[begin : begin + count]
    # 2. The distributions that follow from them, in rows padded to a few sizes.
    roots, following = (np.asarray(ids, np.int32)[i : i + count] for i in (first, first + 1))

    def pad_rows(rows: jax.Array) -> jax.Array:
        return jnp.pad(rows, ((0, -count % _SIZE), *((0, 0),) * (rows.ndim - 1)))

    rows = (pad_rows(hidden), pad_rows(drafted), pad_rows(jnp.asarray(roots)), pad_rows(jnp.asarray(following)))
    columns = _compare(target, draft, *rows, sampling_params(1, temperature))
    return Places(*(np.asarray(column, np.float64)[:count] for column in columns))


def read_taps(target: Decoder, ids: Sequence[int], taps: Sequence[int]) -> tuple:
    """The inputs float32 [1, S, E] of the target's layers ``taps`` on a padded text."""
    inputs = _taps(target, pad(ids))
    return tuple(inputs[tap] for tap in taps)


def pad(ids: Sequence[int]) -> jax.Array:
    """The tokens int32 [1, S], padded so that few programs are compiled."""
    return jnp.asarray(np.pad(ids, (0, -len(ids) % _SIZE)), jnp.int32)[None]


@jax.jit
def _hidden(model: Decoder, tokens: jax.Array) -> jax.Array:
    return read_target(model, tokens).hidden[0]


@jax.jit
def _taps(target: Decoder, tokens: jax.Array) -> tuple:
    return read_target(target, tokens, tuple(range(target.config.num_layers + 1))).taps


@jax.jit
def _head_hidden(head: HeadModule, target: Decoder, tokens: jax.Array, taps: tuple) -> jax.Array:
    """The hidden state [S, E] from which the head drafts its first token below each root."""
    if isinstance(head, BlockHead):
        roots = jnp.arange(tokens.shape[1])[None]
        out = read_target(target, tokens, head.config.taps).replace(taps=taps)
        return run_blocks(head, target, tokens, out, roots)[0, :, head.config.block_size - head.config.drafts]
    features = head.fuse(target, taps)[:, :-1]
    ((_, hidden),) = unroll(head, target, features, tokens[:, 1:], 1)
    return jnp.pad(hidden[0], ((1, 0), (0, 0)))  # Row i reads the feature of token i; its root is token i + 1.


def _score(draft, target: Decoder, hidden: jax.Array, roots: jax.Array) -> jax.Array:
    """The draft's logits float32 [N, V] of the token after each root."""
    if not isinstance(draft, HeadModule):
        return draft.logits(hidden)
    if isinstance(draft, BlockHead):
        scores = draft.logits(target, hidden)
        if draft.markov is None:  # A refiner reads whole blocks; these are the logits of its first guess.
            return scores
        return draft.corrected(scores, draft.markov.codes(hidden[:, None], roots[:, None])[:, 0])
    if draft.config.num_heads:
        read = roots[None, :, None] if draft.config.reads_tokens else None
        return draft.logits(target, 0, hidden[None], read)[0]  # type: ignore[call-arg]  # see ``HeadModule``
    return draft.modules[0].logits(target, hidden)


@jax.jit
def _compare(target, draft, hidden, drafted, roots, following, options: SamplingParams) -> tuple:
    """The fields of ``Places``, float32 [N]."""

    def piece(rows):
        hidden, drafted, roots, following = rows
        scores = (target.logits(hidden), _score(draft, target, drafted, roots).astype(jnp.float32))
        p, q = (probabilities(logits[None], options)[0] for logits in scores)
        own_p, own_q = (jnp.take_along_axis(x, following[:, None], 1)[:, 0] for x in (p, q))
        accepted = jnp.where(own_p > 0, jnp.minimum(1, own_q / jnp.maximum(own_p, 1e-30)), own_q)
        own_score = jnp.take_along_axis(scores[1], following[:, None], 1)
        rank = (scores[1] > own_score).sum(1)
        warm_p, warm_q = (jax.nn.softmax(logits, -1) for logits in scores)
        log_p = jnp.log(jnp.maximum(warm_p, 1e-30))
        log_q = jnp.log((1 - _UNIFORM) * warm_q + _UNIFORM / warm_q.shape[-1])
        surprise, draft_surprise = (-jnp.take_along_axis(x, following[:, None], 1)[:, 0] for x in (log_p, log_q))
        divergence = (warm_p * (log_p - log_q)).sum(1)
        return jnp.minimum(p, q).sum(1), accepted, rank, divergence, surprise, draft_surprise

    pieces = jax.tree.map(lambda x: x.reshape(-1, _PIECE, *x.shape[1:]), (hidden, drafted, roots, following))
    return jax.tree.map(lambda x: x.reshape(-1), lax.map(piece, pieces))
