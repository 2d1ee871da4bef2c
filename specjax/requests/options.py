"""The options of a request, as users give them, and their values for each prompt."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..core.checks import check_names, plain, shorten, whole
from ..core.sampling import NUMBERS, SamplingParams, sampling_params
from ..errors import RequestError
from .limits import MOST_SAMPLES
from .other_libraries import rename_options

CONSTRAINTS = ("regex", "choices", "json_schema", "grammar")
"""The options that constrain the whole text, of which a prompt has one at most."""

MOST_LOGPROBS = 20
"""The largest value of ``logprobs``."""


@dataclasses.dataclass(frozen=True)
class Options:
    """The options of a call.

    An option is one value for all prompts, or a list with one value for each prompt. ``n`` is
    always one number. New values need no new compilation, with one exception: the first call with
    ``logprobs`` or ``policy_logprobs``, with stop strings or with a constraint compiles a program
    for it. ``sampling.SamplingParams`` has the formulas of temperature, top-k, top-p, min-p and
    penalties.

    Attributes:
      max_new_tokens: the most new tokens after each prompt.
      min_new_tokens: no token may end the text before this number of new tokens.
      temperature: divides the logits; 0 is greedy.
      top_k: sample from the k likeliest tokens; 0 or -1 for all.
      top_p: sample from the likeliest tokens that together reach this probability.
      min_p: leave out tokens below this fraction of the largest probability.
      repetition_penalty: make tokens that occurred less likely, by this factor on the logit; 1
        changes nothing.
      presence_penalty: subtract this once from the logits of tokens in the output.
      frequency_penalty: subtract this from the logits of tokens in the output, for each occurrence.
      logit_bias: {token id: number added to its logit}.
      allowed_tokens: token ids. All other tokens become impossible.
      suppressed_tokens: token ids. These tokens become impossible.
      seed: seed of the random numbers, from 0 to 2^32 - 1. A prompt's output depends only on its
        own options and seed, so equal prompts with one seed give equal texts. Use ``n`` for several
        samples of a prompt. None is seed 0. With method "auto", a sampled text without a seed may
        also depend on the batch's choices, see ``drafters.auto``.
      n: samples of each prompt. There may be ``limits.MOST_SAMPLES``. See ``samples`` for their
        keys.
      ignore_eos: continue past end-of-text tokens.
      stop: a string or strings that end the text. The text ends before the string.
      stop_token_ids: further tokens that end the text.
      logprobs: a number from 0 to 20. The result records the log-probability under the model of
        each new token, and of this many likeliest tokens at its place.
      policy_logprobs: whether the result records the log-probability of each new token under the
        distribution from which it was drawn: that of the model after all options, temperature
        included. At temperature 0 it is 0.
      regex: the text must match this regular expression in full. The syntax is that of Python's
        ``re``.
      choices: the text must be one of these strings.
      json_schema: the text must be JSON for this schema, a dict or JSON text.
      grammar: the text must match this grammar, in llguidance's form of Lark.
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
    seed: Any = None
    n: Any = 1
    ignore_eos: Any = False
    stop: Any = None
    stop_token_ids: Any = None
    logprobs: Any = None
    policy_logprobs: Any = False
    regex: Any = None
    choices: Any = None
    json_schema: Any = None
    grammar: Any = None

    @classmethod
    def of(cls, options: Mapping) -> "Options":
        """Makes options from keyword arguments, which may have other libraries' names.

        Raises RequestError for an unknown name.
        """
        known = [field.name for field in dataclasses.fields(cls)]
        options = rename_options(options)
        check_names(options, known)
        return cls(**options)

    def count_samples(self) -> int:
        """``n``, checked."""
        return whole("n", self.n, most=MOST_SAMPLES)

    def rows(self, batch: int) -> list[dict]:
        """The options in ``_KINDS`` by name, for each of ``batch`` prompts.

        Raises RequestError for values of another kind.
        """
        columns = {name: _per_prompt(name, getattr(self, name), batch) for name in _KINDS}
        return [{name: column[b] for name, column in columns.items()} for b in range(batch)]


def read_numbers(options: Options, batch: int, **others) -> SamplingParams:
    """The ``SamplingParams`` of ``batch`` prompts.

    They have the options of ``sampling.NUMBERS``, and ``others``.

    Raises RequestError for a number that is out of range.
    """
    return sampling_params(batch, **{name: getattr(options, name) for name in NUMBERS}, **others)


def _is_whole(x) -> bool:
    return isinstance(x, int | np.integer) and not isinstance(x, bool)


def _is_truth(x) -> bool:
    return isinstance(x, bool | np.bool_)


def _is_text(x) -> bool:
    return isinstance(x, str)


def _is_list_of(test):
    return lambda value: isinstance(value, list | tuple | set | frozenset) and all(map(test, value))


_KINDS = {
    "logit_bias": (lambda value: isinstance(value, Mapping), "a mapping from token ids to numbers"),
    "allowed_tokens": (_is_list_of(_is_whole), "a list of token ids"),
    "suppressed_tokens": (_is_list_of(_is_whole), "a list of token ids"),
    "stop": (_is_list_of(_is_text), "a string or a list of strings"),
    "stop_token_ids": (_is_list_of(_is_whole), "a list of token ids"),
    "logprobs": (_is_whole, f"a whole number from 0 to {MOST_LOGPROBS}"),
    "policy_logprobs": (_is_truth, "true or false"),
    "ignore_eos": (_is_truth, "true or false"),
    "regex": (_is_text, "a string"),
    "choices": (_is_list_of(_is_text), "a list of strings"),
    "json_schema": (lambda value: isinstance(value, str | Mapping), "a dict or JSON text"),
    "grammar": (_is_text, "a string"),
}
"""For each option, a test whether a value is for one prompt, and its description in messages."""


def _per_prompt(name: str, value, batch: int) -> list:
    """The value of an option for each prompt; None where the option is not given."""
    is_one, wanted = _KINDS[name]
    value = plain(value)
    if name == "stop" and isinstance(value, str):
        value = [value]
    if name == "choices" and isinstance(value, str):
        raise RequestError(f"choices must be a list of strings, not one string; use choices=[{shorten(value)}]")
    if value is None or is_one(value):
        return [value] * batch
    if not isinstance(value, list | tuple) or not value or not all(one is None or is_one(one) for one in value):
        raise RequestError(f"{name} must be {wanted}, or a list with one for each prompt, not {shorten(value)}")
    if len(value) != batch:
        raise RequestError(
            f"{name} has {len(value)} values for {batch} prompts; give one value, or one for each prompt"
        )
    return list(value)


def read_tokens(name: str, ids, vocab_size: int) -> np.ndarray:
    """Token ids as an array. Raises RequestError where one is outside the vocabulary."""
    ids = list(ids)
    for id in ids:
        if not 0 <= id < vocab_size:
            raise RequestError(
                f"{name} holds a token outside the vocabulary of {vocab_size}: {shorten(id)}; leave it out"
            )
    return np.array(ids, np.int64)


def read_bias(row: dict, vocab_size: int) -> np.ndarray:
    """Float32 [V]: the logit bias of one prompt, minus infinity for impossible tokens.

    Raises RequestError for tokens outside the vocabulary, for values that are NaN or plus infinity,
    and where no token is left.
    """
    bias = np.zeros(vocab_size, np.float32)
    biases: dict[int, Any] = {_bias_token(id): plain(value) for id, value in (row["logit_bias"] or {}).items()}
    ids = read_tokens("logit_bias", biases, vocab_size)
    for value in biases.values():
        if not isinstance(value, int | float | np.integer | np.floating) or isinstance(value, bool):
            raise RequestError(f"logit_bias must map token ids to numbers, not {shorten(value)}")
        if not value <= _LARGEST_BIAS:
            raise RequestError(
                f"logit_bias holds a value that is not finite: {shorten(value)}; use -inf to forbid a token"
            )
    bias[ids] = [value if value >= -_LARGEST_BIAS else -np.inf for value in biases.values()]
    if row["allowed_tokens"] is not None:
        if not row["allowed_tokens"]:
            raise RequestError("allowed_tokens is empty; allow at least one token")
        outside = np.ones(vocab_size, bool)
        outside[read_tokens("allowed_tokens", row["allowed_tokens"], vocab_size)] = False
        bias[outside] = -np.inf
    bias[read_tokens("suppressed_tokens", row["suppressed_tokens"] or (), vocab_size)] = -np.inf
    if (bias == -np.inf).all():
        raise RequestError(
            "allowed_tokens, suppressed_tokens and logit_bias together rule out every token; leave at least one"
        )
    return bias


_LARGEST_BIAS = float(np.finfo(np.float32).max)


def _bias_token(id) -> int:
    """A token id, which may be given as text because the keys of JSON objects are text."""
    if isinstance(id, str) and id.strip().isdecimal() and len(id) < 20:
        return int(id)
    if not _is_whole(id):
        raise RequestError(f"logit_bias must map token ids to numbers, and {shorten(id)} is no token id")
    return int(id)
