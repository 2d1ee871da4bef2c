"""The options of a request, and the arrays that a batch of requests becomes. All on the host, before anything is compiled."""

import dataclasses
import difflib
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import jax
import numpy as np

from ..checkpoints.load import LanguageModel
from ..checks import per_row
from ..errors import RequestError
from ..sampling import SamplingParams, random_keys, sampling_params
from .constraint import check_lengths, combine, compile_constraint
from .stop_strings import StopAutomaton, combine_stops, compile_stops

MOST_LOGPROBS = 20

_FEWEST_STOP_IDS = 8


@dataclasses.dataclass(frozen=True)
class Options:
    """The options of a call. Each is one value for all prompts or a list with one for each; none of them recompiles, except that
    the first call with ``logprobs``, with stop strings or with a constraint compiles the program that has them.

    Attributes:
      max_new_tokens: new tokens at most.
      min_new_tokens: until then no token may end the text.
      temperature, top_k, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty: see ``sampling.SamplingParams``.
      logit_bias: {token id: number added to its logit}.
      allowed_tokens, suppressed_tokens: token ids; all others, or these, are impossible.
      seed: whole number from 0; a prompt's output depends on its own options and seed alone.
      ignore_eos: go on past end-of-text tokens.
      stop: a string or strings that end the text, which then ends before them.
      stop_token_ids: further tokens that end the text.
      logprobs: record the log-probability of each new token under the model alone, and of so many likeliest ones (0 to 20).
      regex: the text must match this regular expression in full.
      choices: the text must be one of these strings.
      json_schema: the text must be JSON for this schema, a dict or JSON text.
    """

    max_new_tokens: Any = 128
    min_new_tokens: Any = 0
    temperature: Any = 0.0
    top_k: Any = 0
    top_p: Any = 1.0
    min_p: Any = 0.0
    repetition_penalty: Any = 1.0
    presence_penalty: Any = 0.0
    frequency_penalty: Any = 0.0
    logit_bias: Any = None
    allowed_tokens: Any = None
    suppressed_tokens: Any = None
    seed: Any = 0
    ignore_eos: Any = False
    stop: Any = None
    stop_token_ids: Any = None
    logprobs: Any = None
    regex: Any = None
    choices: Any = None
    json_schema: Any = None

    @classmethod
    def of(cls, given: dict) -> "Options":
        """From keyword arguments. Raises RequestError for one that does not exist."""
        known = [field.name for field in dataclasses.fields(cls)]
        for name in given:
            if name not in known:
                near = difflib.get_close_matches(name, known, 1)
                raise RequestError(f"option {name!r} is unknown; " + (f"did you mean {near[0]}?" if near else f"use {', '.join(known)}"))
        return cls(**given)

    def row(self, b: int, batch: int) -> dict:
        """The options of row b that are not numbers, each a value of its own: strings, token ids, biases, constraints."""
        return {
            "logit_bias": _of_row("logit_bias", self.logit_bias, b, batch, Mapping),
            "allowed_tokens": _of_row("allowed_tokens", self.allowed_tokens, b, batch, int),
            "suppressed_tokens": _of_row("suppressed_tokens", self.suppressed_tokens, b, batch, int),
            "stop": _of_row("stop", [self.stop] if isinstance(self.stop, str) else self.stop, b, batch, str),
            "stop_token_ids": _of_row("stop_token_ids", self.stop_token_ids, b, batch, int),
            "logprobs": _of_row("logprobs", self.logprobs, b, batch, (int, type(None))),
            "ignore_eos": _of_row("ignore_eos", self.ignore_eos, b, batch, bool),
            "regex": _of_row("regex", self.regex, b, batch, str),
            "choices": _of_row("choices", self.choices, b, batch, str),
            "json_schema": _of_row("json_schema", self.json_schema, b, batch, (str, Mapping)),
        }


_LISTS = ("allowed_tokens", "suppressed_tokens", "stop", "stop_token_ids", "choices")
"""Options of which one row's value is itself a list."""


def _of_row(name: str, value, b: int, batch: int, kind):
    """Row b's value of an option whose values are of ``kind``, or lists of it for names in ``_LISTS``; None if not given."""
    if value is None:
        return None
    if name not in _LISTS:
        if isinstance(value, kind):
            return value
        wanted = kind
    else:
        value = value.tolist() if isinstance(value, np.ndarray) else list(value) if isinstance(value, Sequence | set | frozenset) else value
        if isinstance(value, list) and all(_is(x, kind) for x in value):
            return value
        wanted = (list, tuple, set, frozenset, type(None), np.ndarray)
    if not isinstance(value, Sequence) or isinstance(value, str) or not all(x is None or isinstance(x, wanted) for x in value):
        raise RequestError(f"{name} is not understood: {str(value)[:60]!r}; give one value, or a list with one for each prompt")
    if len(value) != batch:
        raise RequestError(f"{name} has {len(value)} values for {batch} prompts; give one value, or one for each prompt")
    if name not in _LISTS or value[b] is None:
        return value[b]
    row = list(value[b])
    if not all(_is(x, kind) for x in row):
        raise RequestError(f"{name} is not understood: {str(row)[:60]!r}; give one value, or a list with one for each prompt")
    return row


def _is(x, kind) -> bool:
    return isinstance(x, (int, np.integer)) and not isinstance(x, bool) if kind is int else isinstance(x, kind)


def tokens_in(name: str, ids, vocab_size: int) -> np.ndarray:
    """Token ids as an array. Raises RequestError where one is outside the vocabulary."""
    ids = np.asarray(list(ids), np.int64)
    if ids.size and not 0 <= ids.min() <= ids.max() < vocab_size:
        raise RequestError(f"{name} holds a token outside the vocabulary of {vocab_size}; leave it out")
    return ids


def bias_of(row: dict, vocab_size: int) -> np.ndarray:
    """Float32 [V]: logit bias, and minus infinity for what allowed and suppressed tokens rule out. Raises RequestError."""
    bias = np.zeros(vocab_size, np.float32)
    given = row["logit_bias"] or {}
    try:
        ids, values = tokens_in("logit_bias", map(int, given), vocab_size), np.array([float(v) for v in given.values()])
    except (TypeError, ValueError) as error:
        if isinstance(error, RequestError):
            raise
        raise RequestError("logit_bias must map token ids to numbers") from None
    if np.isnan(values).any() or (values == np.inf).any():
        raise RequestError("logit_bias holds a value that is not finite; use a large number, or minus infinity to forbid a token")
    bias[ids] = values
    if row["allowed_tokens"] is not None:
        if not row["allowed_tokens"]:
            raise RequestError("allowed_tokens is empty; allow at least one token")
        outside = np.ones(vocab_size, bool)
        outside[tokens_in("allowed_tokens", row["allowed_tokens"], vocab_size)] = False
        bias[outside] = -np.inf
    bias[tokens_in("suppressed_tokens", row["suppressed_tokens"] or (), vocab_size)] = -np.inf
    if (bias == -np.inf).all():
        raise RequestError("allowed_tokens, suppressed_tokens and logit_bias together rule out every token; leave at least one")
    return bias


@dataclasses.dataclass(frozen=True)
class Batch:
    """What a batch of requests is to the device, and what its host side must remember.

    Attributes:
      sampling, keys, limit, stop_ids, stops, stopping: see ``DecodeState``.
      logprobs: int or None for each row, as asked.
      stop_strings: the stop strings of each row.
      extra_stops: token ids of each row that end it beside end-of-text tokens.
    """

    sampling: SamplingParams
    keys: jax.Array
    limit: np.ndarray
    stop_ids: np.ndarray
    stops: StopAutomaton | None
    stopping: np.ndarray
    logprobs: list[int | None]
    stop_strings: list[list[str]]
    extra_stops: list[list[int]]


def batched(options: Options, lengths: np.ndarray, target: LanguageModel, processors: tuple[Callable, ...] = ()) -> Batch:
    """The options of prompts with so many tokens, checked. Raises RequestError for what is out of range or cannot be met."""
    B, V = len(lengths), target.config.vocab_size
    rows = [options.row(b, B) for b in range(B)]
    wanted = per_row("max_new_tokens", options.max_new_tokens, B, np.int32, least=1)
    least = per_row("min_new_tokens", options.min_new_tokens, B, np.int32)
    for b in np.flatnonzero(least > wanted):
        raise RequestError(f"min_new_tokens {least[b]} is above max_new_tokens {wanted[b]}; lower it")
    for row in rows:
        row["logprobs"] is None or per_row("logprobs", row["logprobs"], 1, np.int32, most=MOST_LOGPROBS)
    extra = [tokens_in("stop_token_ids", row["stop_token_ids"] or (), V).tolist() for row in rows]
    ends = [[*(() if row["ignore_eos"] else target.config.eos_token_ids), *more] for row, more in zip(rows, extra)]
    width = max(_FEWEST_STOP_IDS, 1 << (max(map(len, ends)) - 1).bit_length())
    stop_ids = np.array([end + [-1] * (width - len(end)) for end in ends], np.int32)

    bias = np.zeros((B, V), np.float32)
    for b, row in enumerate(rows):
        if any(row[name] is not None for name in ("logit_bias", "allowed_tokens", "suppressed_tokens")):
            bias[b] = bias_of(row, V)
    limit = np.minimum(lengths + wanted, target.config.context)
    compiled = [_constraint(row, bias[b], int(least[b]), int(limit[b] - lengths[b]), target) for b, row in enumerate(rows)]
    constraint, start = combine(compiled, V)
    stop_strings = [row["stop"] or [] for row in rows]
    stops, stopping = combine_stops([_stops(target.tokenizer, V, tuple(strings)) for strings in stop_strings], V)
    sampling = checked_numbers(options, B).replace(
        bias=jax.device_put(bias), constraint=constraint, start=jax.device_put(start), processors=processors
    )
    keys = random_keys(per_row("seed", options.seed, B, np.uint32, most=2**32 - 1), B)
    return Batch(sampling, keys, limit, stop_ids, stops, stopping, [row["logprobs"] for row in rows], stop_strings, extra)


def checked_numbers(options: Options, batch: int) -> SamplingParams:
    """Those options that are numbers of the pipeline, alone. Raises RequestError for one out of range."""
    names = {f.name for f in dataclasses.fields(SamplingParams)} & {f.name for f in dataclasses.fields(Options)}
    return sampling_params(batch, **{name: getattr(options, name) for name in names})


def _constraint(row: dict, bias: np.ndarray, least: int, most: int, target: LanguageModel):
    """The compiled constraint of a row, or None."""
    given = {name: row[name] for name in ("regex", "choices", "json_schema") if row[name] is not None}
    if not given:
        return None
    (name,) = given if len(given) == 1 else (" and ".join(given),)
    if row["ignore_eos"] or not target.config.eos_token_ids:
        why = "ignore_eos is set; leave one out" if row["ignore_eos"] else "the model has none"
        raise RequestError(f"{name} needs the end-of-text token to end the text, and {why}")
    banned = frozenset(np.flatnonzero(bias == -np.inf).tolist())
    if banned.issuperset(target.config.eos_token_ids):
        raise RequestError(f"{name} needs the end-of-text token, which allowed_tokens, suppressed_tokens or logit_bias rule out")
    compiled = compile_constraint(target.tokenizer, target.config.eos_token_ids, target.config.vocab_size, **given, banned=banned)
    check_lengths(compiled, least, most)
    return compiled


@lru_cache(64)
def _stops(tokenizer, vocab_size: int, strings: tuple[str, ...]):
    return compile_stops(tokenizer, vocab_size, strings) if strings else None
