"""Turns the options of a request into the arrays of a batch, on the host and before compilation."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import jax
import numpy as np

from ..checkpoints.load import LanguageModel
from ..core.checks import per_row
from ..core.state import Requests
from ..errors import RequestError
from ..parallel import several_hosts
from .constraint import Constraint, check_lengths, combine_constraints, compile_constraint
from .grammar import Grammar
from .grammar_masks import RowGrammar
from .limits import MOST_CONSTRAINTS, check_limit
from .options import CONSTRAINTS, MOST_LOGPROBS, Options, read_bias, read_numbers, read_tokens
from .samples import make_keys, read_seeds, repeat_rows
from .stop_strings import combine_stops, compile_stops

_FEWEST_STOP_IDS = 8


@dataclasses.dataclass(frozen=True)
class Batch:
    """A batch on the host.

    It has the device's part of the requests, and the part that the host needs afterwards.

    Each prompt has ``samples`` rows, one for each sample. The lists have an entry for each row.

    Attributes:
      prompts: the token ids of the prompts.
      requests: the options for the device. Their arrays are still on the host, except keys and
        sampling options. The prompts are not among them, because their capacity is not yet known.
      logprobs, policy_logprobs: these options.
      stop_strings: the stop strings.
      extra_stops: the token ids that end a row besides end-of-text tokens.
      constraints: the constraints on the host, or None. A grammar lives as long as its batch.
      samples: the number of rows of each prompt.
    """

    prompts: list[list[int]]
    requests: Requests
    logprobs: list[int | None]
    policy_logprobs: list[bool]
    stop_strings: list[list[str]]
    extra_stops: list[list[int]]
    constraints: list[Constraint | RowGrammar | None]
    samples: int = 1

    @property
    def recorded_logprobs(self) -> int | None:
        """The number of likeliest tokens to record at each place, see ``prefill.prefill``.

        It has two values besides None, so that there are few programs.
        """
        asked = [n for n in self.logprobs if n is not None] + [0] * any(self.policy_logprobs)
        return None if not asked else MOST_LOGPROBS if max(asked) else 0


def build_batch(
    options: Options,
    prompts: Sequence[Sequence[int]],
    target: LanguageModel,
    processors: tuple[Callable, ...] = (),
    ends: tuple[int, ...] = (),
) -> Batch:
    """The batch of ``prompts``, lists of token ids.

    Args:
      target: gives the vocabulary, the context and the end-of-text tokens.
      processors: see ``sampling.SamplingParams``.
      ends: further tokens that end a row like end-of-text tokens, such as a chat template's end of
        turn.

    Raises RequestError for options that are out of range or cannot be met.
    """
    # 1. Check the numbers of prompts, rows and tokens.
    B = len(prompts)
    V = target.config.vocab_size
    n = options.count_samples()
    lengths = np.array([len(prompt) for prompt in prompts])
    check_limit(B, "MOST_PROMPTS", f"the number of {B:,} prompts", "call with fewer at a time")
    check_limit(
        B * n, "MOST_ROWS", f"the number of {B * n:,} rows (prompts times samples)", "call with fewer at a time"
    )
    rows = options.rows(B)
    wanted = per_row("max_new_tokens", options.max_new_tokens, B, np.int32, least=1)
    least = per_row("min_new_tokens", options.min_new_tokens, B, np.int32)
    for b in np.flatnonzero(least > wanted):
        raise RequestError(f"min_new_tokens {least[b]} is above max_new_tokens {wanted[b]}; lower it")
    for row in rows:
        if row["logprobs"] is not None:
            per_row("logprobs", row["logprobs"], 1, np.int32, most=MOST_LOGPROBS)
    # 2. Read the options of each prompt.
    extra = [read_tokens("stop_token_ids", row["stop_token_ids"] or (), V).tolist() for row in rows]

    bias = np.zeros((B, V), np.float32)
    for b, row in enumerate(rows):
        if any(row[name] is not None for name in ("logit_bias", "allowed_tokens", "suppressed_tokens")):
            bias[b] = read_bias(row, V)
    limit = np.minimum(lengths + wanted, target.config.most_tokens(lengths)).astype(np.int32)
    each = ((row, bias[b], int(least[b]), int(limit[b] - lengths[b]), target) for b, row in enumerate(rows))
    # 3. Compile constraints and stop strings.
    compiled = _repeat(_count(_constraint(*one) for one in each), n)
    constraints = [RowGrammar(one) if isinstance(one, Grammar) else one for one in compiled]
    constraint, start, grammar = combine_constraints(constraints)
    strings = [list(row["stop"] or ()) for row in rows]
    stops, stop_start = combine_stops(_count(_compile_stops(target.tokenizer, V, tuple(texts)) for texts in strings))
    # 4. Lay the options out as arrays.
    seeds, seeded = read_seeds(options.seed, B)
    arrays: dict[str, Any] = dict(
        lengths=lengths.astype(np.int32),
        sampling=read_numbers(options, B, bias=bias, processors=processors),
        limit=limit,
        stop_ids=_stop_ids(rows, extra, target, ends),
        stop_start=stop_start,
        seeded=seeded,
    )
    requests = Requests(tokens=None, keys=make_keys(seeds, n), **repeat_rows(arrays, n))
    sampling = requests.sampling.replace(**jax.device_put(dict(start=start, grammar=grammar)))
    # 5. Repeat each prompt for its samples.
    return Batch(
        prompts=_repeat([list(prompt) for prompt in prompts], n),
        requests=requests.replace(sampling=sampling).with_automata(constraint, stops),
        logprobs=_repeat([row["logprobs"] for row in rows], n),
        policy_logprobs=_repeat([bool(row["policy_logprobs"]) for row in rows], n),
        stop_strings=_repeat(strings, n),
        extra_stops=_repeat(extra, n),
        constraints=constraints,
        samples=n,
    )


def _count(compiled: Iterator) -> list:
    """The automata of all rows. Raises RequestError as soon as too many of them differ."""
    numbers = []
    different = set()
    for one in compiled:
        numbers.append(one)
        different |= {one} - {None}
        check_limit(
            len(different), "MOST_CONSTRAINTS", "the number of the batch's different constraints", "split the batch"
        )
    return numbers


def _repeat(values: list, n: int) -> list:
    return [value for value in values for _ in range(n)]


def _stop_ids(rows: list[dict], extra: list[list[int]], target: LanguageModel, ends: tuple[int, ...]) -> np.ndarray:
    """Int32 [B, W]: the end-of-text tokens and ``stop_token_ids`` of each row, then -1."""
    eos_ids = read_tokens("eos_token_id of the model", target.config.eos_token_ids, target.config.vocab_size).tolist()
    eos_ids = [*dict.fromkeys([*eos_ids, *ends])]
    stops = [[*(() if row["ignore_eos"] else eos_ids), *more] for row, more in zip(rows, extra)]
    width = max(_FEWEST_STOP_IDS, 1 << (max(map(len, stops)) - 1).bit_length())
    return np.array([stop + [-1] * (width - len(stop)) for stop in stops], np.int32)


def _constraint(
    row: dict, bias: np.ndarray, least: int, most: int, target: LanguageModel
) -> Constraint | Grammar | None:
    """The constraint of a row, or None.

    Raises RequestError for an automaton without a match of ``least`` to ``most`` tokens.
    """
    fields = {name: row[name] for name in CONSTRAINTS if row[name] is not None}
    if not fields:
        return None
    name = " and ".join(fields)
    eos_ids = target.config.eos_token_ids
    if row["ignore_eos"] or not eos_ids:
        why = "ignore_eos is set; leave one out" if row["ignore_eos"] else "the model has none"
        raise RequestError(f"{name} needs the end-of-text token to end the text, and {why}")
    banned = frozenset(np.flatnonzero(bias == -np.inf).tolist())
    if banned.issuperset(eos_ids):
        raise RequestError(
            f"{name} needs the end-of-text token, which allowed_tokens, suppressed_tokens or logit_bias rule out"
        )
    constraint = compile_constraint(target.tokenizer, eos_ids, target.config.vocab_size, **fields, banned=banned)
    if isinstance(constraint, Constraint):
        check_lengths(constraint, least, most)
    elif several_hosts():
        raise RequestError(
            f"{name} is followed on the host, and a mesh of several hosts has no host that sees it all; use one host"
        )
    return constraint


@lru_cache(MOST_CONSTRAINTS)
def _compile_stops(tokenizer, vocab_size: int, strings: tuple[str, ...]):
    return compile_stops(tokenizer, vocab_size, strings) if strings else None
