"""Reading of prompts: requests become the state in which decoding begins."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..core.cache import KVCache, commit, empty
from ..core.feature_record import FeatureRecording
from ..core.logprobs import empty_logprobs
from ..core.round_record import Recording
from ..core.sampling import KEYS, random_keys, sampling_params
from ..core.settings import own_settings
from ..core.state import DecodeState, Requests
from ..core.stats import Counters
from ..core.stored_rows import EightBits, Halves, full_dtype
from ..errors import RequestError
from ..models.base import Model, Output, Sizes
from ..models.decoder import Decoder
from ..parallel import split_rows
from .drafter import Drafter

_CHUNK = 256
"""Tokens of a prompt that one forward reads, unless the caller sets ``chunk``."""

_MISSED = 4
"""Tokens that one forward of ``catch_up`` reads."""


def make_requests(
    prompts: Sequence[Sequence[int]],
    *,
    drafter: Drafter,
    max_new_tokens: int = 128,
    temperature=0.0,
    seed: int | Sequence[int] = 0,
    stop_ids: Sequence[int] = (),
    capacity: int | None = None,
    **sampling,
) -> Requests:
    """Requests from lists of token ids.

    Args:
      drafter: the drafter that will decode them; the capacity has room for its longest path.
      temperature, seed, sampling: one value, or one for each prompt; see
        ``sampling.sampling_params``.
      stop_ids: tokens that end any row.
      capacity: positions of each row; by default the smallest power of two that suffices.

    Raises RequestError for empty prompts, a capacity that is too small, or options out of range.
    """
    if not prompts or not all(len(prompt) for prompt in prompts):
        raise RequestError("a prompt is empty; give at least one token")
    B = len(prompts)
    longest = max(map(len, prompts))
    need = positions_needed(longest, longest + max_new_tokens, drafter, capacity)
    tokens, lengths = pad_prompts(prompts, capacity or 1 << (need - 1).bit_length())
    arrays: dict[str, Any] = dict(
        tokens=tokens,
        lengths=lengths,
        limit=lengths + np.int32(max_new_tokens),
        stop_ids=np.tile(np.array([*stop_ids, -1], np.int32), (B, 1)),
    )
    return Requests(
        sampling=sampling_params(B, temperature, **sampling), keys=random_keys(seed, B), **jax.device_put(arrays)
    )


def pad_prompts(prompts: Sequence[Sequence[int]], width: int) -> tuple[np.ndarray, np.ndarray]:
    """The prompts int32 [B, width] with zeros behind them, and their lengths int32 [B]."""
    tokens = np.zeros((len(prompts), width), np.int32)
    for row, prompt in zip(tokens, prompts):
        row[: len(prompt)] = prompt
    return tokens, np.array([len(prompt) for prompt in prompts], np.int32)


def positions_needed(prompt: int, limit: int, drafter: Drafter, capacity: int | None = None) -> int:
    """The positions of a row that ends at ``limit`` tokens, with room for a draft's longest path.

    ``prompt`` is the number of its prompt's tokens. Raises RequestError if ``capacity`` is smaller.
    """
    need = limit + drafter.depth + 1
    if capacity is not None and capacity < need:
        raise RequestError(
            f"the prompt has {prompt} tokens, and with max_new_tokens and one round it needs {need} positions; the "
            f"capacity is {capacity}: shorten the prompt, lower max_new_tokens, or give more capacity"
        )
    return need


@own_settings()
def prefill(
    target: Model,
    draft,
    requests: Requests,
    *,
    drafter: Drafter,
    dtype: jax.typing.DTypeLike | EightBits | Halves = "float32",
    chunk: int | None = None,
    logprobs: int | None = None,
    recording: Recording | FeatureRecording | None = None,
) -> DecodeState:
    """Reads the prompts: all tokens but the last go into the cache, and the last becomes the root.

    ``drafter``, ``dtype``, ``chunk``, ``logprobs`` and ``recording`` are static under ``jit``.

    Args:
      draft: the result of ``drafter.parameters``.
      dtype: the type of keys and values in the caches; ``EightBits`` and ``Halves`` are for
        the target's cache alone.
      chunk: tokens that one forward reads; it must divide the capacity. By default at most 256.
      logprobs: the number of likeliest tokens to record at each place. 0 records the emitted token
        alone, None records nothing. See ``Logprobs``.
      recording: the size of the record of rounds, for a drafter of chains that are drawn from a q;
        or of the record of features, for a drafter that reads taps; None records none.

    Raises RequestError for keys of another implementation than "threefry2x32", and for a record
    that does not fit the drafter.
    """
    implementation = jax.random.key_impl(requests.keys)
    if implementation != KEYS:
        raise RequestError(
            f"keys of the implementation {implementation} give all rows of a batch the same draws; "
            f"make them with jax.random.key(seed, impl={KEYS!r})"
        )
    chunk = chunk or math.gcd(requests.tokens.shape[1], _CHUNK)
    filled = fill(target, requests.tokens, requests.lengths, chunk, dtype, drafter.taps, unread=1)
    return begin_decoding(
        target, draft, requests, filled,
        drafter=drafter, dtype=dtype, chunk=chunk, logprobs=logprobs, recording=recording,
    )  # fmt: skip


@own_settings()
def begin_decoding(
    target: Model,
    draft,
    requests: Requests,
    filled: "Filled",
    *,
    drafter: Drafter,
    dtype: jax.typing.DTypeLike | EightBits | Halves,
    chunk: int,
    logprobs: int | None = None,
    recording: Recording | FeatureRecording | None = None,
    drafted: "Filled | None" = None,
) -> DecodeState:
    """The second half of ``prefill``: the drafter reads the prompts.

    ``filled`` has their first tokens.

    ``drafted``: the prompts that are read with ``Drafter.reads``; by default the drafter reads them
    now. The other arguments are those of ``prefill``.
    """
    options = {} if drafted is None else {"filled": drafted}
    tokens = requests.tokens
    lengths = requests.lengths
    B, T = tokens.shape
    cache, taps, finite = filled
    state = DecodeState(
        request=requests.replace(tokens=None),
        tokens=tokens,
        from_draft=jnp.zeros((B, T), bool),
        cache=cache.replace(length=lengths - 1),
        drafter=drafter.init(target, draft, tokens, lengths, taps, chunk=chunk, dtype=full_dtype(dtype), **options),
        done=(lengths >= requests.limit) | ~finite,
        failed=~finite,
        constraint_state=_start(requests.sampling.start, B),
        stop_state=_start(requests.stop_start, B),
        round=jnp.int32(0),
        logprobs=None if logprobs is None else empty_logprobs(B, T, logprobs),
        counters=Counters.zeros(B, drafter.depth, len(drafter.chooser.choices) if drafter.chooser else 0),
        rounds=recording and recording.make_empty(B, drafter.depth, len(drafter.taps), target.config),
    )
    return split_rows(state, B)


def _start(states: jax.Array | None, B: int) -> jax.Array:
    """The first state of each row in an automaton: state 0 where none is given."""
    return jnp.zeros(B, jnp.int32) if states is None else states


class Reads(Protocol):
    """What ``fill`` reads with: a ``Model``, or modules that stand for one."""

    @property
    def config(self) -> Sizes: ...
    def __call__(
        self, tokens, positions, mask, cache: KVCache, *, taps: tuple[int, ...], rope_lengths: jax.Array
    ) -> Output: ...


class Filled(NamedTuple):
    """Prompts of B rows, as far as they are read.

    Attributes:
      cache: the keys and values.
      taps: the taps float32 [B, T, E].
      finite: bool [B], whether all hidden states of the prompts are finite.
    """

    cache: KVCache
    taps: tuple
    finite: jax.Array


def fill(model: Reads, tokens, lengths, chunk: int, dtype, taps: tuple[int, ...] = (), *, unread: int = 0) -> Filled:
    """Commits all but the last ``unread`` of the tokens ``tokens[b, :lengths[b]]`` to a new cache.

    The cache has capacity T. The tokens are read ``chunk`` at a time. Of an encoder-decoder's
    prompt the encoder reads the source at once, and the decoder its first tokens. It has no taps,
    and its first round finds numbers that are not finite.
    """
    B, T = tokens.shape
    if isinstance(model, Decoder) and model.encoder is not None:
        begin = len(model.config.decoder_prompt)
        cache = read_source(model, tokens, lengths - begin, dtype)
        if begin > unread:
            cache = catch_up(model, cache, tokens, lengths - unread)
        return Filled(cache, (), jnp.ones(B, bool))
    lengths = jnp.maximum(lengths - unread, 0)
    read = lambda i, filled: fill_chunk(model, tokens, lengths, filled, i * chunk, chunk, taps)
    nothing = nothing_filled(model, B, T, dtype, taps)
    filled = lax.fori_loop(0, (jnp.max(lengths) + chunk - 1) // chunk, read, nothing)
    return filled._replace(cache=filled.cache.replace(length=lengths))


def nothing_filled(model: Reads, B: int, T: int, dtype, taps: tuple[int, ...] = ()) -> Filled:
    """B rows before their first chunk, with room for T tokens."""
    empty_taps = tuple(jnp.zeros((B, T, model.config.hidden_size)) for _ in taps)
    return Filled(empty(model.config, B, T, dtype), empty_taps, jnp.ones(B, bool))


@own_settings()
def fill_chunk(model: Reads, tokens, lengths, filled: Filled, start, chunk: int, taps: tuple[int, ...] = ()) -> Filled:
    """Commits the ``chunk`` tokens from place ``start`` on, see ``fill_piece``."""
    piece = lax.dynamic_slice_in_dim(tokens, start, chunk, 1)
    read = fill_piece(model, piece, lengths, filled, jnp.full(lengths.size, start), taps)
    put = lambda old, new: lax.dynamic_update_slice_in_dim(old, new, start, 1)
    return read._replace(taps=tuple(map(put, filled.taps, read.taps)))


@own_settings()
def fill_piece(model: Reads, piece, lengths, filled: Filled, starts, taps: tuple[int, ...] = ()) -> Filled:
    """Commits the tokens ``piece`` [B, C], in each row those from its place in ``starts`` [B] on.

    Tokens at or after ``lengths`` [B] are left out. All tokens before ``starts`` must be read
    already. The length of the returned cache is ``lengths``, and the returned taps are [B, C, E].
    """
    mask = jnp.tril(jnp.ones((piece.shape[1],) * 2, bool))
    cache = filled.cache.replace(length=starts)
    positions = starts[:, None] + jnp.arange(piece.shape[1])
    out = model(piece, positions, mask, cache, taps=taps, rope_lengths=lengths[:, None] + 1)
    finite = filled.finite & (jnp.isfinite(out.hidden).all(-1) | (positions >= lengths[:, None])).all(-1)
    return Filled(commit(cache, out.rows, None, lengths, valid=finite), out.taps, finite)


def read_source(model: Decoder, tokens: jax.Array, lengths: jax.Array, dtype) -> KVCache:
    """The cache after an encoder has read ``tokens[b, :lengths[b]]``, and the decoder no token.

    The encoder reads all T tokens, and masks those beyond ``lengths``.
    """
    B, T = tokens.shape
    cache = empty(model.config, B, T, dtype)
    return cache.replace(source=model.encode(tokens, lengths, dtype), omitted=lengths, length=lengths)


def catch_up(model: Model, cache: KVCache, tokens, length) -> KVCache:
    """The cache with ``tokens[b, :length[b]]`` committed, after rounds that a draft skipped.

    Each iteration reads ``_MISSED`` tokens of all rows, until no row is behind. No iteration runs
    if the draft took part in the last round.

    Args:
      tokens: int32 [B, T]. The last iteration may write up to ``_MISSED - 1`` void positions after
        ``length``; the path's room beyond the row's limit holds them.
      length: int32 [B], at least ``cache.length``.
    """
    node = jnp.arange(_MISSED)
    mask = jnp.tril(jnp.ones((_MISSED, _MISSED), bool))

    def read(cache):
        positions = cache.length[:, None] + node
        out = model(jnp.take_along_axis(tokens, positions, 1, mode="clip"), positions, mask, cache)
        finite = (jnp.isfinite(out.hidden).all(-1) | (positions >= length[:, None])).all(-1)
        return commit(cache, out.rows, None, jnp.minimum(cache.length + _MISSED, length), valid=finite)

    return lax.while_loop(lambda cache: jnp.any(cache.length < length), read, cache)
