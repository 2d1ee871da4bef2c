"""Beam search: the k likeliest continuations, all of them scored as one tree.

Each beam is a path in the tree of all nodes that were scored so far. The nodes of all beams share
the cache of the prompt. Their own keys and values lie beside it, one after another, and each beam
sees those of its path. So beams that die or split move no keys and values, and the cache is read
once for all beams.
"""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import lax

from ..checkpoints.load import LanguageModel
from ..core.cache import KVCache, Rows
from ..core.checks import LARGEST, per_row, whole
from ..errors import RequestError
from ..loop.prefill import fill, pad_prompts
from ..models.base import Model
from ..models.decoder import Decoder
from ..parallel import mesh_of, use_mesh
from ..requests.options import Options, read_tokens
from ..requests.prompts import encode_prompts
from ..requests.vocabulary import decode_continuation

_CHUNK = 128


class Beams(struct.PyTreeNode):
    """The k best ended texts of each prompt so far, the best first.

    Attributes:
      tokens: int32 [B, k, L], the new tokens.
      lengths: int32 [B, k], the number of new tokens, with the stop token.
      scores: float32 [B, k], the log-probability over ``length ** length_penalty``; -inf for none.
    """

    tokens: jax.Array
    lengths: jax.Array
    scores: jax.Array


class Search(struct.PyTreeNode):
    """The search after ``steps`` scored levels.

    Attributes:
      tokens: int32 [B, k, L], the new tokens of each running beam.
      newest: int32 [B, k], the token of each beam that is to be scored.
      log_p: float32 [B, k], the log-probability of each beam, descending; -inf for no beam.
      rows: keys and values of all scored nodes. Level i has the places i k to (i + 1) k - 1.
      path: bool [B, k, L k], the places of each beam's nodes.
      done: bool [B].
    """

    steps: jax.Array
    tokens: jax.Array
    newest: jax.Array
    log_p: jax.Array
    rows: Rows
    path: jax.Array
    best_beams: Beams
    done: jax.Array


@dataclasses.dataclass(frozen=True)
class Beam:
    """One continuation of a prompt.

    Attributes:
      text: the new text without the stop token.
      token_ids: the new tokens, with the stop token if there is one.
      score: the log-probability over ``length ** length_penalty``.
      finish_reason: "stop" at a stop token, "length" at ``max_new_tokens``.
    """

    text: str
    token_ids: list[int]
    score: float
    finish_reason: str


def beam_search(
    target: LanguageModel,
    prompts: str | Sequence[int] | Sequence[str] | Sequence[Sequence[int]],
    *,
    num_beams: int = 4,
    max_new_tokens: int = 64,
    length_penalty: float = 1.0,
    stop_token_ids: Sequence[int] = (),
) -> list[list[Beam]]:
    """The ``num_beams`` best continuations of each prompt, the best first.

    The search ends when no running beam can become better than the worst of ``num_beams`` ended
    ones (``early_stopping="never"`` of transformers).

    Args:
      target: the model.
      prompts: a string, a list of token ids, or a list of such prompts; one prompt is a list of
        one.
      num_beams: k. Half of the vocabulary is the most.
      max_new_tokens: L, the most new tokens. The nodes of all beams take the memory of k L
        positions.
      length_penalty: the exponent of the length; 0 compares log-probabilities.
      stop_token_ids: tokens that end a beam, beside the model's own.

    Returns a list for each prompt. Raises RequestError for bad input.
    """
    # 1. Check the options.
    k = whole("num_beams", num_beams)
    L = whole("max_new_tokens", max_new_tokens)
    config = target.config
    config.refuse_encoder("beam search")
    (penalty,) = per_row("length_penalty", length_penalty, 1, np.float32, -LARGEST)
    if 2 * k > config.vocab_size:
        raise RequestError(f"num_beams is {k}, and half of the vocabulary, {config.vocab_size // 2}, is the most")
    (given_stops,) = (row["stop_token_ids"] for row in Options(stop_token_ids=[*stop_token_ids]).rows(1))
    given_stops = read_tokens("stop_token_ids", given_stops, config.vocab_size)
    # 2. Encode the prompts.
    ids = encode_prompts(prompts, target.tokenizer, config)
    longest = max(map(len, ids))
    if longest + L > config.context:
        raise RequestError(
            f"a prompt of {longest} tokens and {L} new ones do not fit the context of {config.context}; "
            f"lower max_new_tokens to {max(config.context - longest, 0)}"
        )
    # 3. Search on the device.
    tokens, lengths = pad_prompts(ids, -(-longest // _CHUNK) * _CHUNK)
    stops = jnp.asarray([*config.eos_token_ids, *given_stops, -1], jnp.int32)
    with use_mesh(mesh_of(target.model)):
        beams = jax.device_get(search_beams(target.model, tokens, lengths, stops, penalty, k=k, L=L))
    return [[_beam(target, ids[b], beams, b, i, stops) for i in range(k)] for b in range(len(ids))]


def _beam(target: LanguageModel, prompt: list[int], beams: Beams, b: int, i: int, stops) -> Beam:
    ids = beams.tokens[b, i, : beams.lengths[b, i]].tolist()
    stopped = ids[-1] in np.asarray(stops)
    shown = ids[:-1] if stopped else ids
    text = decode_continuation(target.tokenizer, target.config.vocab_size, prompt, shown)
    return Beam(text, ids, float(beams.scores[b, i]), "stop" if stopped else "length")


@jax.jit(static_argnames=("k", "L"))
def search_beams(model: Decoder, tokens, lengths, stops, penalty, *, k: int, L: int) -> Beams:
    """The best texts of prompts int32 [B, T] of these ``lengths``; T is a multiple of 128."""
    cache, _, _ = fill(model, tokens, lengths, _CHUNK, model.embed[...].dtype, unread=1)
    root = jnp.take_along_axis(tokens, lengths[:, None] - 1, 1)
    search = begin(cache, root, k, L)
    running = lambda search: ~search.done.all()
    return lax.while_loop(running, lambda search: advance(model, cache, search, stops, penalty), search).best_beams


def begin(cache: KVCache, root: jax.Array, k: int, L: int) -> Search:
    """The search before the first level. All beams but one have no probability."""
    B = root.shape[0]
    blank = jnp.zeros((B, k, L), jnp.int32)
    none = jnp.full((B, k), -jnp.inf)
    return Search(
        steps=jnp.int32(0), tokens=blank, newest=jnp.broadcast_to(root, (B, k)), log_p=none.at[:, 0].set(0.0),
        rows=cache.blank_rows(k * L), path=jnp.zeros((B, k, k * L), bool),
        best_beams=Beams(blank, jnp.zeros((B, k), jnp.int32), none), done=jnp.zeros(B, bool),
    )  # fmt: skip


def advance(model: Model, cache: KVCache, search: Search, stops: jax.Array, penalty: jax.Array) -> Search:
    """Scores the newest tokens of all beams in one forward, and keeps the best continuations."""
    B, k, L = search.tokens.shape
    t = search.steps
    at = lambda x, i: jnp.take_along_axis(x, jnp.expand_dims(i, range(2, x.ndim)), 1)
    log_p, rows, path = _score(model, cache, search)
    total, best = lax.top_k((search.log_p[..., None] + log_p).reshape(B, -1), 2 * k)  # at most k of them end
    V = log_p.shape[-1]
    parent = best // V
    token = best % V
    texts = lax.dynamic_update_index_in_dim(at(search.tokens, parent), token, t, 2)
    ends = (token[..., None] == stops).any(-1) | (t == L - 1)
    # As in transformers, only the k best candidates may end a text.
    scores = jnp.where(ends & (jnp.arange(2 * k) < k), total / jnp.float32(t + 1) ** penalty, -jnp.inf)
    ended = Beams(texts, jnp.full((B, 2 * k), t + 1), scores)
    every = jax.tree.map(lambda old, new: jnp.concatenate([old, new], 1), search.best_beams, ended)
    best_ended = lax.top_k(every.scores, k)[1]
    best_beams = jax.tree.map(lambda x: at(x, best_ended), every)
    running, chosen = lax.top_k(jnp.where(ends, -jnp.inf, total), k)
    # A running beam scores best at this length.
    longest = jnp.where(penalty > 0, jnp.float32(L), jnp.float32(t + 1))
    hopeless = running[:, 0] / longest**penalty <= best_beams.scores.min(1)
    return Search(
        steps=t + 1, tokens=at(texts, chosen), newest=at(token, chosen), log_p=running, rows=rows,
        path=at(path, at(parent, chosen)), best_beams=best_beams, done=search.done | hopeless | (t == L - 1),
    )  # fmt: skip


def _score(model: Model, cache: KVCache, search: Search) -> tuple[jax.Array, Rows, jax.Array]:
    """The log-probabilities after each beam, float32 [B, k, V], and the new rows and paths."""
    B, k, L = search.tokens.shape
    t = search.steps
    root = cache.length[:, None]
    own = jnp.broadcast_to(jnp.eye(k, dtype=bool), (B, k, k))
    places = jnp.arange(k * L) // k
    positions = jnp.broadcast_to(root + t, (B, k))
    out = model(
        search.newest, positions, jnp.concatenate([search.path, own], 2), cache, rows=search.rows.layers,
        row_positions=jnp.concatenate([root + places, positions], 1), rope_lengths=root + 1,
    )  # fmt: skip
    path = search.path | (jnp.arange(k * L) == t * k + jnp.arange(k)[:, None])
    return jax.nn.log_softmax(model.logits(out.hidden)), search.rows.put(out.rows, k, t * k), path
