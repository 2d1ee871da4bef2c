"""Decodes all cases many times with the real loop and counts the continuations."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

import specjax
from specjax import DecodeState, Requests
from specjax.core.logit_adjustments import RowConstraints
from specjax.core.sampling import random_keys, sampling_params
from specjax.loop.drafter import Drafter
from specjax.requests.grammar import compile_grammar
from specjax.requests.grammar_masks import RowGrammar, follow_grammars
from specjax.rules import RULES

from .cases import CAPACITY, CASES, CONSTRAINT, CONSTRAINT_START, END, LENGTH, STOP_START, STOPS, Case, V
from .law import number
from .methods import draft_of, target_of

prefill = jax.jit(specjax.prefill, static_argnames=("drafter", "chunk", "dtype"))
run = jax.jit(specjax.run, static_argnames=("drafter", "rule"))


def count_draws(
    drafter: Drafter,
    rule,
    seed: int,
    rows: int,
    calls: int = 1,
    processors: tuple = (),
    draft=None,
    kind: str = "dense",
    cases: dict[str, Case] = CASES,
) -> tuple[dict[str, np.ndarray], float]:
    """How often each continuation came out, by case, and the rate at which drafts were accepted.

    The rate is that of the cases without a grammar: drafts do not know grammars, which reject most of them.

    Args:
      rule: a name in ``RULES`` or a function.
      seed: of the draft's random parameters.
      rows: rows of each case in the batch; the batch is decoded ``calls`` times with different keys.
      draft: by default a random one.
      kind: the class of the target, one of ``methods.TARGETS``.
      cases: the cases of the batch, by name.
    """
    draft = draft_of(drafter, seed) if draft is None else draft
    parameters = drafter.parameters(draft, V)
    target, counts, rates = target_of(drafter, kind), [], []
    rated = np.repeat([not case.grammar for case in cases.values()], rows)
    for call in range(calls):
        requests = make_batch(call, rows, processors, cases)
        state = prefill(target, parameters, requests, drafter=drafter, chunk=4, dtype="float32")
        state = run(target, parameters, state, jnp.int32(99), drafter=drafter, rule=RULES.get(rule, rule))
        counts.append(count(state, rows, cases))
        accepted, drafted = state.counters.accepted_at[rated].sum(), state.counters.drafted[rated].sum()
        rates.append(float(accepted / jnp.maximum(drafted, 1)))
    return {name: sum(c[name] for c in counts) for name in cases}, float(np.mean(rates))


def make_batch(seed: int, rows: int, processors: tuple = (), named: dict[str, Case] = CASES) -> Requests:
    """All cases in one batch, ``rows`` rows of each, one after another."""
    cases = list(named.values())
    repeat = lambda values: np.repeat(np.array(values), rows, axis=0)
    field = lambda name: repeat([getattr(case, name) for case in cases])
    numbers = [f.name for f in dataclasses.fields(Case) if f.type in (float, int) and f.name != "stop"]
    tokens = repeat([case.prompt + (0,) * (CAPACITY - len(case.prompt)) for case in cases])
    lengths = repeat([len(case.prompt) for case in cases])
    sampling = sampling_params(
        len(tokens),
        **{name: field(name) for name in numbers},
        bias=np.float32(field("bias")),
        constraint=follow_grammars(RowConstraints(CONSTRAINT)),
        start=np.int32(repeat([CONSTRAINT_START[case.language] for case in cases])),
        grammar=np.array(
            [row.number if row else 0 for row in grammar_rows(tuple(case.grammar for case in cases), rows)], np.int32
        ),
        processors=processors,
    )
    return Requests(
        tokens=jnp.asarray(tokens, jnp.int32),
        lengths=jnp.asarray(lengths, jnp.int32),
        sampling=sampling,
        keys=jax.random.split(random_keys(seed, 1)[0], len(tokens)),
        limit=jnp.asarray(lengths + LENGTH, jnp.int32),
        stop_ids=jnp.asarray(field("stop")[:, None], jnp.int32),
        stops=STOPS,
        stop_start=jnp.asarray(repeat([STOP_START[case.stop_string] for case in cases]), jnp.int32),
    )


@functools.cache
def grammar_rows(grammars: tuple[str, ...], rows: int) -> list[RowGrammar | None]:
    """The grammars of a batch's rows, ``rows`` of each. Token i is the digit i, and END is the end of the text."""
    letters = {str(i): i for i in range(V) if i != END} | {"<end>": END}
    backend = Tokenizer(models.BPE(letters, []))
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<end>")
    compiled = [compile_grammar(tokenizer, (END,), V, "regex", grammar) if grammar else None for grammar in grammars]
    return [one and RowGrammar(one) for one in compiled for _ in range(rows)]


def count(state: DecodeState, rows: int, cases: dict[str, Case] = CASES) -> dict[str, np.ndarray]:
    """How often each continuation, by its ``number``, came out in the rows of each case."""
    tokens, lengths, done, failed = map(np.asarray, (state.tokens, state.cache.length, state.done, state.failed))
    assert done.all() and not failed.any()
    counts = {}
    for i, (name, case) in enumerate(cases.items()):
        own, prompt = slice(i * rows, (i + 1) * rows), len(case.prompt)
        new = tokens[own, prompt : prompt + LENGTH]
        emitted = np.arange(LENGTH) < (lengths[own] + 1 - prompt)[:, None]
        counts[name] = np.bincount(number(np.where(emitted, new, V)), minlength=(V + 1) ** LENGTH)
    return counts


def halve_after_repeat(logits, context):
    """A user's processor: after two equal tokens the logits of even tokens are halved."""
    last = context.last(2)
    repeat = (last[..., 0] == last[..., 1])[..., None]
    return jnp.where(repeat & (jnp.arange(V) % 2 == 0), logits / 2, logits)
