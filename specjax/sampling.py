"""The one path from logits to probabilities, used by plain decoding, by drafters and by verification alike.

Losslessness rests on p and q coming out of the same pipeline, so nothing else in specjax touches logits. Options are arrays over
the batch: requests with different options share one compiled program. Order and meaning are those of transformers: logit bias and
forbidden tokens, penalties, ``min_new_tokens``, constraint, the user's processors, temperature, top-k, top-p, min-p.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from .checks import LARGEST, per_row
from .context import Context
from .errors import RequestError

_PIECE = 64
"""Tokens of a piece in ``likeliest``."""


@struct.dataclass
class SamplingParams:
    """Options of each row.

    Attributes:
      temperature: float32 [B]. 0 is greedy: all probability on the likeliest token.
      top_k: int32 [B]. Keep the k likeliest tokens; 0 keeps all.
      top_p: float32 [B], in (0, 1]. Keep the likeliest tokens that together reach this probability.
      min_p: float32 [B], in [0, 1]. Drop tokens less likely than this fraction of the likeliest. After top-k and top-p, as in
        transformers; vLLM applies it before them.
      repetition_penalty: float32 [B], above 0. Logits of tokens in prompt or output are divided by it if positive and multiplied
        if negative; 1 does nothing.
      presence_penalty, frequency_penalty: float32 [B]. Subtracted from the logits of tokens in the output, once and for each
        occurrence (OpenAI, vLLM; transformers has neither); 0 does nothing.
      min_new_tokens: int32 [B]. Until then the tokens that would end the row are impossible. A stop string may still end it, as
        in transformers; vLLM ignores those too.
      bias: float32 [B, V] or [B, 1], added to the logits first; minus infinity forbids a token.
      constraint: ``constraint.Automaton`` of all rows, or None.
      start: int32 [B], each row's first state in it.
      processors: functions ``(logits [B, N, V], Context) -> logits`` that run after all of the above. Static.
    """

    temperature: jax.Array
    top_k: jax.Array
    top_p: jax.Array
    min_p: jax.Array
    repetition_penalty: jax.Array
    presence_penalty: jax.Array
    frequency_penalty: jax.Array
    min_new_tokens: jax.Array
    bias: jax.Array
    constraint: struct.PyTreeNode | None = None
    start: jax.Array | None = None
    processors: tuple[Callable, ...] = struct.field(pytree_node=False, default=())


def sampling_params(
    batch: int,
    temperature=0.0,
    top_k=0,
    top_p=1.0,
    min_p=0.0,
    repetition_penalty=1.0,
    presence_penalty=0.0,
    frequency_penalty=0.0,
    min_new_tokens=0,
    *,
    bias=None,
    constraint=None,
    start=None,
    processors: tuple[Callable, ...] = (),
) -> SamplingParams:
    """Checked options for ``batch`` rows; each is one value for all or a list with one per row. Raises RequestError."""
    options = (
        per_row("temperature", temperature, batch, np.float32),
        per_row("top_k", top_k, batch, np.int32),
        per_row("top_p", top_p, batch, np.float32, most=1, above=True),
        per_row("min_p", min_p, batch, np.float32, most=1),
        per_row("repetition_penalty", repetition_penalty, batch, np.float32, above=True),
        per_row("presence_penalty", presence_penalty, batch, np.float32, least=-LARGEST),
        per_row("frequency_penalty", frequency_penalty, batch, np.float32, least=-LARGEST),
        per_row("min_new_tokens", min_new_tokens, batch, np.int32),
        np.zeros((batch, 1), np.float32) if bias is None else bias,
    )
    start = jnp.asarray(np.zeros(batch, np.int32) if start is None else start)
    return SamplingParams(*map(jnp.asarray, options), constraint, start, tuple(processors))


def checked_processors(processors: tuple[Callable, ...], vocab_size: int) -> tuple[Callable, ...]:
    """``processors``. Raises RequestError for one that does not map float32 logits [B, N, V] to the same."""
    shape = lambda dtype, *dims: jax.ShapeDtypeStruct(dims, dtype)
    i32, logits = jnp.int32, shape(jnp.float32, 2, 3, vocab_size)
    rows, nodes = shape(i32, 2), shape(i32, 2, 3)
    context = Context(shape(i32, 2, 16), rows, rows, rows, shape(i32, 2, 1), nodes, shape(bool, 2, 3, 3), nodes)
    for processor in processors:
        name = getattr(processor, "__name__", processor)
        try:
            out = jax.eval_shape(processor, logits, context)
        except Exception as error:
            raise RequestError(f"processor {name} does not take (logits, context): {str(error).splitlines()[0]}") from error
        if getattr(out, "shape", None) != logits.shape or out.dtype != logits.dtype:
            raise RequestError(f"processor {name} returns {out} for {logits}; it must keep shape and dtype")
    return processors


def probabilities(logits: jax.Array, params: SamplingParams, context: Context | None = None) -> jax.Array:
    """Distributions that the options make of logits: float32 [B, N, V] to float32 [B, N, V], one-hot in greedy rows.

    Work that no row asks for is not done: a batch of greedy rows costs an argmax, one without truncation no sort. Without a
    ``context`` only the options that do not look back apply. Where the options rule out every token the distribution is NaN.
    """
    logits = logits.astype(jnp.float32)
    return warped(logits if context is None else adjusted(logits, params, context), params)


def warped(logits: jax.Array, params: SamplingParams) -> jax.Array:
    """The second half of ``probabilities``: temperature and truncation of adjusted logits."""
    greedy = params.temperature == 0

    def sampled(logits):
        scaled = logits - logits.max(-1, keepdims=True)  # so that no temperature makes the largest infinite
        scaled /= jnp.where(greedy, 1.0, params.temperature)[:, None, None]
        cut = jnp.any((params.top_k > 0) | (params.top_p < 1) | (params.min_p > 0))
        p = jax.nn.softmax(jax.lax.cond(cut, _truncated, lambda x, _: x, scaled, params))
        return jnp.where(greedy[:, None, None], _one_hot_argmax(logits), p)

    return jax.lax.cond(jnp.all(greedy), _one_hot_argmax, sampled, logits)


def sample(keys: jax.Array, p: jax.Array, params: SamplingParams) -> jax.Array:
    """One token for each row: int32 [B] from keys [B] and distributions [B, V] that ``probabilities`` made."""
    return jax.lax.cond(
        jnp.all(params.temperature == 0),
        lambda keys, p: jnp.argmax(p, -1).astype(jnp.int32),
        lambda keys, p: jax.vmap(jax.random.categorical)(keys, jnp.log(p)).astype(jnp.int32),
        keys, p,
    )  # fmt: skip


def siblings(keys: jax.Array, logits: jax.Array, q: jax.Array, params: SamplingParams, k: int, how: str) -> tuple[jax.Array, jax.Array]:
    """k children for each node: int32 [B, N, k] in the order of choice, and bool [B, N, k], whether there was such a token.

    Args:
      keys: [B].
      logits, q: float32 [B, N, V], adjusted logits and what ``warped`` made of them.
      how: "without_replacement" and "independent" draw from q, the former by Gumbel's trick: the k largest of log q plus noise are
        k draws, each given that those before it were something else (Kool et al. 2019). "top_k" takes the k likeliest, as greedy
        rows always do.
    """

    def drawn(keys, logits, q):
        if how == "independent":
            of_row = lambda key, q: jax.random.categorical(key, jnp.log(q), shape=(k, q.shape[0])).T
            tokens, exists = jax.vmap(of_row)(keys, q), jnp.ones((*q.shape[:2], k), bool)
        else:
            noise = jax.vmap(lambda key: jax.random.gumbel(key, q.shape[1:]))(keys)
            tokens, exists = best(jnp.log(q) + noise)
        greedy = (params.temperature == 0)[:, None, None]
        return jax.tree.map(lambda a, b: jnp.where(greedy, a, b), best(logits), (tokens.astype(jnp.int32), exists))

    def best(scores):
        values, tokens = likeliest(scores, k)
        return tokens, values > -jnp.inf

    if how == "top_k":
        return best(logits)
    return jax.lax.cond(jnp.all(params.temperature == 0), lambda keys, logits, q: best(logits), drawn, keys, logits, q)


def likeliest(scores: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
    """The k largest of scores [..., V] and where they are, int32, both [..., k]: ``lax.top_k``, which looks at few of them here.

    Of pieces of the vocabulary the k with the largest maxima hold them all. They stay in order, so that of equals the first comes first.
    """
    size = _PIECE
    if scores.shape[-1] < 2 * k * size or scores.shape[-1] % size:
        values, where = jax.lax.top_k(scores, k)
        return values, where.astype(jnp.int32)
    pieces = scores.reshape(*scores.shape[:-1], -1, size)
    chosen = jnp.sort(jax.lax.top_k(pieces.max(-1), k)[1], -1)
    held = jnp.take_along_axis(pieces, chosen[..., None], -2).reshape(*scores.shape[:-1], k * size)
    values, where = jax.lax.top_k(held, k)
    piece = jnp.take_along_axis(chosen, where // size, -1)
    return values, (piece * size + where % size).astype(jnp.int32)


def adjusted(logits: jax.Array, params: SamplingParams, context: Context) -> jax.Array:
    """Logits after everything that is not temperature or truncation, float32 [B, N, V]."""
    penalties = (params.repetition_penalty != 1) | (params.presence_penalty != 0) | (params.frequency_penalty != 0)
    asked = jnp.any(penalties | (params.min_new_tokens > 0)) | jnp.any(params.bias != 0)
    logits = jax.lax.cond(asked, _penalised, lambda logits, *_: logits, logits, params, context)
    if params.constraint is not None:
        logits = _constrained(logits, params, context)
    for processor in params.processors:
        logits = processor(logits, context)
    return logits


def _penalised(logits: jax.Array, params: SamplingParams, context: Context) -> jax.Array:
    V = logits.shape[-1]
    option = lambda x: x[:, None, None]
    logits = logits + params.bias[:, None]
    repetition = jnp.where(context.seen(V), option(params.repetition_penalty), 1)
    logits = jnp.where(logits < 0, logits * repetition, logits / repetition)
    counts = context.counts(V)
    logits -= option(params.frequency_penalty) * counts + option(params.presence_penalty) * jnp.float32(counts > 0)
    rows = jnp.arange(logits.shape[0])[:, None]
    stops = jnp.zeros((logits.shape[0], V), bool).at[rows, jnp.where(context.stop_ids < 0, V, context.stop_ids)].set(True, mode="drop")
    early = context.generated < params.min_new_tokens[:, None]
    return jnp.where(early[..., None] & stops[:, None], -jnp.inf, logits)


def _constrained(logits: jax.Array, params: SamplingParams, context: Context) -> jax.Array:
    """Minus infinity for tokens after which the row's constraint cannot be met within ``min_new_tokens`` and the limit.

    Nodes that can no longer be reached, since their path already breaks it, are left as they are.
    """
    automaton = params.constraint
    after = automaton.next[jnp.maximum(context.states, 0)]  # [B, N, C]
    reached = jnp.maximum(after, 0)
    wanted = params.min_new_tokens[:, None] - context.generated - 1
    room = context.limit[:, None] - context.length[:, None] - context.path.sum(-1) - 1
    allowed = (after >= 0) & (automaton.longest[reached] >= wanted[..., None]) & (automaton.shortest[reached] <= room[..., None])
    allowed = (allowed | (context.states < 0)[..., None])[..., automaton.classes]
    return jnp.where(allowed | ~allowed.any(-1, keepdims=True), logits, -jnp.inf)


def _one_hot_argmax(logits: jax.Array) -> jax.Array:
    impossible = logits.max(-1, keepdims=True) == -jnp.inf
    return jnp.where(impossible, jnp.nan, jax.nn.one_hot(jnp.argmax(logits, -1), logits.shape[-1]))


def _truncated(logits: jax.Array, params: SamplingParams) -> jax.Array:
    """Logits with everything outside top-k, then top-p, then min-p at minus infinity.

    Each option keeps a prefix of the tokens in falling order, so one sort gives one threshold. Ties at the threshold are kept,
    as transformers keeps them for top-k. The likeliest token always stays.
    """
    V = logits.shape[-1]
    option = lambda x: x[:, None, None]
    ranked = -jnp.sort(-logits, axis=-1)
    last = jnp.where(option(params.top_k) == 0, V, jnp.minimum(option(params.top_k), V)) - 1
    ranked = jnp.where(ranked >= jnp.take_along_axis(ranked, last, -1), ranked, -jnp.inf)
    p = jax.nn.softmax(ranked)
    before = jnp.cumsum(p, -1) - p  # mass of the likelier ones: a token is in the nucleus while that is below top_p
    kept = ((before < option(params.top_p)) | (option(params.top_p) >= 1)) & jnp.isfinite(ranked)
    p = jnp.where(kept, p, 0)
    kept &= p >= option(params.min_p) * p[..., :1]
    threshold = jnp.min(jnp.where(kept, ranked, jnp.inf), -1, keepdims=True)
    return jnp.where(logits >= threshold, logits, -jnp.inf)
