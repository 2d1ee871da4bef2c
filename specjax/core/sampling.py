"""The pipeline from logits to probabilities: plain decoding, drafters and acceptance all use it.

Losslessness depends on p and q coming out of the same pipeline, so nothing else in specjax changes
logits. Options are arrays over the batch: requests with different options share one compiled
program. The options apply in the order of transformers and mean the same: logit bias and forbidden
tokens, penalties, ``min_new_tokens``, constraint, the user's processors, temperature, top-k, top-p,
min-p.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from ..errors import RequestError
from .checks import LARGEST, per_row
from .context import Context
from .logit_adjustments import Automaton, RowConstraints, constrain, penalise
from .selection import argmax, draw, likeliest
from .truncation import truncated_softmax

KEYS = "threefry2x32"
"""The implementation of all random keys.

"rbg", the default on many TPU hosts, is unsuitable: a vmapped draw uses the first key of the batch
for all rows. Sampling would be neither lossless nor independent of the batch.
"""


def _number(default: float, dtype: type = np.float32, **bounds) -> dict[str, Any]:
    """The metadata of an option of one number a row, for ``sampling_params``.

    ``bounds``: arguments of ``checks.per_row``.
    """
    return dict(default=default, dtype=dtype, bounds=bounds)


class SamplingParams(struct.PyTreeNode):
    """Sampling options of each row.

    Attributes:
      temperature: float32 [B]. 0 is greedy: all probability lies on the likeliest token.
      top_k: int32 [B]. Keeps the k likeliest tokens; 0 and -1 keep all.
      top_p: float32 [B], in (0, 1]. Keeps the likeliest tokens that together reach this
        probability.
      min_p: float32 [B], in [0, 1]. Drops tokens less likely than this fraction of the likeliest.
        It applies after top-k and top-p, as in transformers; vLLM applies it before them.
      repetition_penalty: float32 [B], above 0. Divides positive logits of tokens in the prompt or
        the output, and multiplies negative ones; 1 changes nothing.
      presence_penalty: float32 [B]. Subtracted from the logits of all tokens that occur in the
        output (OpenAI, vLLM; transformers lacks it); 0 changes nothing.
      frequency_penalty: float32 [B]. The same, multiplied by the number of occurrences.
      min_new_tokens: int32 [B]. While a row has fewer new tokens, the tokens that would end it are
        impossible. A stop string may still end it, as in transformers; in vLLM it may not.
      bias: float32 [B, V] or [B, 1], added to the logits first; minus infinity forbids a token.
      constraint: the automata and the grammars of all rows, or None.
      start: int32 [B], each row's first state in the automata.
      grammar: int32 [B], the number of each row's grammar on the host, or 0.
      processors: functions ``(logits [B, N, V], Context) -> logits`` that run after all options but
        temperature, top-k, top-p and min-p. Static.
    """

    temperature: jax.Array = struct.field(metadata=_number(0.0))
    top_k: jax.Array = struct.field(metadata=_number(0, np.int32, least=-1))
    top_p: jax.Array = struct.field(metadata=_number(1.0, most=1, above=True))
    min_p: jax.Array = struct.field(metadata=_number(0.0, most=1))
    repetition_penalty: jax.Array = struct.field(metadata=_number(1.0, above=True))
    presence_penalty: jax.Array = struct.field(metadata=_number(0.0, least=-LARGEST))
    frequency_penalty: jax.Array = struct.field(metadata=_number(0.0, least=-LARGEST))
    min_new_tokens: jax.Array = struct.field(metadata=_number(0, np.int32))
    bias: jax.Array
    constraint: RowConstraints | None = None
    start: jax.Array | None = None
    grammar: jax.Array | None = None
    processors: tuple[Callable, ...] = struct.field(pytree_node=False, default=())

    @property
    def table(self) -> Automaton | None:
        """The automata of all rows, or None."""
        return self.constraint and self.constraint.table


NUMBERS = {field.name: field.metadata for field in dataclasses.fields(SamplingParams) if "bounds" in field.metadata}
"""The options of one number a row, by their names: default, dtype and bounds of each."""


def random_keys(seed, batch: int) -> jax.Array:
    """Typed keys [batch] of the implementation ``KEYS``.

    ``seed`` is a whole number for all rows, or a list with one for each row.
    """
    seeds = np.broadcast_to(np.asarray(seed, np.uint32), batch)
    return _make_keys(jax.device_put(seeds))


@jax.jit
def _make_keys(seeds: jax.Array) -> jax.Array:
    return jax.vmap(lambda seed: jax.random.key(seed, impl=KEYS))(seeds)


def sampling_params(
    batch: int,
    temperature=0.0,
    *,
    bias=None,
    constraint=None,
    start=None,
    grammar=None,
    processors: tuple[Callable, ...] = (),
    **numbers,
) -> SamplingParams:
    """Sampling options for ``batch`` rows.

    ``numbers`` are options of ``NUMBERS``. Each is one value for all rows, or a list with one value
    for each row. ``SamplingParams`` describes all options. Raises RequestError for an unknown
    option, and for a value out of range.
    """
    numbers["temperature"] = temperature
    unknown = numbers.keys() - NUMBERS.keys()
    if unknown:
        raise RequestError(f"sampling option {min(unknown)!r} is unknown; use {', '.join(NUMBERS)}")
    arrays: dict[str, Any] = {
        name: per_row(name, numbers.get(name, number["default"]), batch, number["dtype"], **number["bounds"])
        for name, number in NUMBERS.items()
    }
    arrays["bias"] = np.zeros((batch, 1), np.float32) if bias is None else bias
    for name, value in (("start", start), ("grammar", grammar)):
        arrays[name] = np.zeros(batch, np.int32) if value is None else value
    return SamplingParams(**jax.device_put(arrays), constraint=constraint, processors=tuple(processors))


def check_processors(processors: tuple[Callable, ...], vocab_size: int) -> tuple[Callable, ...]:
    """The processors, unchanged.

    Raises RequestError for a processor that changes shape or dtype of float32 logits [B, N, V].
    """

    def shape(*dims, dtype: Any = jnp.int32) -> Any:  # stands for an array
        return jax.ShapeDtypeStruct(dims, dtype)

    logits = shape(2, 3, vocab_size, dtype=jnp.float32)
    rows = shape(2)
    nodes = shape(2, 3)
    context = Context(
        tokens=shape(2, 16), prompt_length=rows, length=rows, limit=rows, stop_ids=shape(2, 1), nodes=nodes,
        path=shape(2, 3, 3, dtype=bool), states=nodes,
    )  # fmt: skip
    for processor in processors:
        name = getattr(processor, "__name__", processor)
        try:
            out = jax.eval_shape(processor, logits, context)
        except Exception as error:
            raise RequestError(
                f"processor {name} does not take (logits, context): {str(error).splitlines()[0]}"
            ) from error
        if getattr(out, "shape", None) != logits.shape or out.dtype != logits.dtype:
            raise RequestError(f"processor {name} returns {out} for {logits}; it must keep shape and dtype")
    return processors


def probabilities(logits: jax.Array, params: SamplingParams, context: Context | None = None) -> jax.Array:
    """Distributions float32 [B, N, V] from logits [B, N, V] under the options.

    Greedy rows get one-hot distributions. If the options rule out every token, the distribution is
    NaN. Without a ``context`` only temperature and truncation apply.

    Options that no row uses cost nothing: a batch of greedy rows costs an argmax, and a batch
    without top-k and top-p searches for no threshold.
    """
    logits = logits.astype(jnp.float32)
    return warp(logits if context is None else adjust(logits, params, context), params)


def warp(logits: jax.Array, params: SamplingParams) -> jax.Array:
    """Temperature and truncation of adjusted logits: the second half of ``probabilities``."""
    greedy = _by_row(params.temperature == 0)

    def sampled(logits):
        temperature = jnp.where(greedy, 1.0, _by_row(params.temperature))
        p = truncated_softmax(logits, temperature, *map(_by_row, (params.top_k, params.top_p, params.min_p)))
        return jnp.where(greedy, _one_hot_argmax(logits), p)

    return jax.lax.cond(jnp.all(greedy), _one_hot_argmax, sampled, logits)


def sample(keys: jax.Array, p: jax.Array, params: SamplingParams) -> jax.Array:
    """One token for each row, int32 [B], drawn from ``probabilities`` [B, V] with keys [B]."""

    def take_best(keys, p):
        return argmax(p)

    return jax.lax.cond(jnp.all(params.temperature == 0), take_best, jax.vmap(draw), keys, p)


def siblings(
    keys: jax.Array, logits: jax.Array, q: jax.Array, params: SamplingParams, k: int, how: str
) -> tuple[jax.Array, jax.Array]:
    """Chooses k children for each node, as ``how`` says.

    Args:
      keys: typed keys [B].
      logits, q: float32 [B, N, V], adjusted logits and their distribution after ``warp``.
      how: "independent" draws k times from q. "without_replacement" draws k different tokens with
        the Gumbel top-k trick: they are the k largest values of log q plus Gumbel noise (Kool et
        al. 2019). "top_k" takes the k likeliest tokens, as greedy rows always do.

    Returns the tokens int32 [B, N, k] in the order of choice, and bool [B, N, k], whether each
    child exists.
    """

    def draw_row(key, q):
        return jax.vmap(lambda keys, q: jax.vmap(draw, (0, None))(keys, q))(jax.random.split(key, (len(q), k)), q)

    def draw_children(keys, logits, q):
        if how == "independent":
            tokens = jax.vmap(draw_row)(keys, q)
            exists = jnp.ones((*q.shape[:2], k), bool)
        else:
            noise = jax.vmap(lambda key: jax.random.gumbel(key, q.shape[1:]))(keys)
            tokens, exists = best(jnp.log(q) + noise)
        greedy = (params.temperature == 0)[:, None, None]
        return jax.tree.map(lambda a, b: jnp.where(greedy, a, b), best(logits), (tokens, exists))

    def best(scores):
        values, tokens = likeliest(scores, k)
        return tokens, values > -jnp.inf

    if how == "top_k":
        return best(logits)

    def take_best(keys, logits, q):
        return best(logits)

    return jax.lax.cond(jnp.all(params.temperature == 0), take_best, draw_children, keys, logits, q)


def adjust(logits: jax.Array, params: SamplingParams, context: Context) -> jax.Array:
    """Logits float32 [B, N, V] after all options but temperature and truncation.

    This is the first half of ``probabilities``.
    """
    penalties = (params.repetition_penalty != 1) | (params.presence_penalty != 0) | (params.frequency_penalty != 0)
    has_effect = jnp.any(penalties | (params.min_new_tokens > 0)) | jnp.any(params.bias != 0)
    logits = jax.lax.cond(has_effect, _penalise_rows, lambda logits, *_: logits, logits, params, context)
    if params.constraint is not None:
        logits = constrain(logits, context, params.constraint, params.min_new_tokens)
    for processor in params.processors:
        logits = processor(logits, context)
    return logits


def _penalise_rows(logits: jax.Array, params: SamplingParams, context: Context) -> jax.Array:
    """Logits after the options of ``penalise``."""
    return penalise(
        logits,
        context,
        bias=params.bias,
        repetition_penalty=params.repetition_penalty,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        min_new_tokens=params.min_new_tokens,
    )


def _by_row(option: jax.Array) -> jax.Array:
    """An option [B] as [B, 1, 1], beside logits [B, N, V]."""
    return option[:, None, None]


def _one_hot_argmax(logits: jax.Array) -> jax.Array:
    likeliest_token = jnp.arange(logits.shape[-1]) == argmax(logits)[..., None]
    impossible = logits.max(-1, keepdims=True) == -jnp.inf
    return jnp.where(impossible, jnp.nan, jnp.float32(likeliest_token))
