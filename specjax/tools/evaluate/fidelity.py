"""Compares texts with the target's: the first difference, and the share of its own choices."""

from collections.abc import Callable, Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from ...checkpoints.load import LanguageModel
from ...loop.prefill import pad_prompts
from ...text.result import Result

_TIE_ULPS = 8
"""Two logits tie if they differ by at most this many units in the last place."""


def difference(
    prompt: int, result: Result, plain: Result, target: LanguageModel, logits_of: Callable | None = None
) -> dict | None:
    """The first difference between a result and plain decoding; None if they are equal.

    ``margin`` is the distance in logits between the likeliest token and the less likely one of the
    two different tokens. ``tie`` is true if rounding explains the difference: the margin is at most
    a few units in the last place.

    Args:
      prompt: the number of the prompt, for the report.
      target: computes the logits, unless ``logits_of`` does.
      logits_of: a function of the tokens so far and the prompt's length, which returns the logits
        [V] to compare.
    """
    pairs = zip(result.token_ids, plain.token_ids)
    k = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
    if k is None:
        if len(result.token_ids) == len(plain.token_ids):
            return None
        shorter = min(len(result.token_ids), len(plain.token_ids))
        return {"prompt": prompt, "token": shorter, "margin": None, "tie": False}
    logits_of = logits_of or partial(logits_after, target)
    logits = logits_of([*plain.prompt_token_ids, *plain.token_ids[:k]], len(plain.prompt_token_ids))
    margin = float(logits.max() - min(logits[result.token_ids[k]], logits[plain.token_ids[k]]))
    exponent = np.floor(np.log2(np.abs(logits[np.isfinite(logits)]).max()))
    unit = float(jnp.finfo(target.model.embed[...].dtype).eps) * 2.0**exponent
    return {"prompt": prompt, "token": k, "margin": margin, "tie": bool(margin <= _TIE_ULPS * unit)}


def logits_after(target: LanguageModel, ids: list[int], prompt: int) -> np.ndarray:
    """Logits float32 [V] after ``ids``, from one forward without a cache.

    ``prompt`` is the prompt's length. Padding to powers of two saves compilations.
    """
    size = 1 << (len(ids) - 1).bit_length()
    tokens, _ = pad_prompts([ids], size)
    return np.asarray(_score(target.model, tokens, jnp.int32(len(ids) - 1), jnp.int32(prompt)))


def fidelity(target: LanguageModel, results: Sequence[Result]) -> dict:
    """The distance of greedy texts of a lossy rule from the target's choices, over all new tokens.

    "agreement" is the share of tokens that the target would have chosen after the same text. "nats"
    is the mean of log max p - log p(token), with p at temperature 1. Greedy decoding has an
    agreement of 1 and 0 nats. The divergence of the texts' law from the target's is infinite as
    soon as one token differs, because a greedy law has one text.
    """
    lost = np.concatenate([shortfall(target, result) for result in results])
    return {"agreement": float(np.mean(lost == 0)), "nats": float(np.mean(lost))}


def shortfall(target: LanguageModel, result: Result) -> np.ndarray:
    """Log max p - log p(token) of each new token, float32; 0 for the target's own choice."""
    ids = [*result.prompt_token_ids, *result.token_ids]
    first = len(result.prompt_token_ids)
    tokens, _ = pad_prompts([ids], 1 << (len(ids) - 1).bit_length())
    return np.asarray(_shortfall(target.model, tokens, jnp.int32(first)))[first - 1 : len(ids) - 1]


@jax.jit
def _score(model, tokens, last, prompt):
    return model.logits(_read(model, tokens, prompt)[last])


@jax.jit
def _shortfall(model, tokens, prompt):
    """Float32 [S]: log max p - log p of the token after each place of a text [1, S]."""

    def gap(row: tuple[jax.Array, jax.Array]) -> jax.Array:
        hidden, token = row
        logits = model.logits(hidden).astype(jnp.float32)
        return logits.max() - logits[token]

    return jax.lax.map(gap, (_read(model, tokens, prompt), jnp.roll(tokens[0], -1)))


def _read(model, tokens, prompt):
    """The hidden states [S, E] of a text [1, S], from one forward without a cache."""
    positions = jnp.arange(tokens.shape[1])[None]
    mask = jnp.tril(jnp.ones((tokens.shape[1],) * 2, bool))
    return model(tokens, positions, mask, rope_lengths=jnp.maximum(positions + 1, prompt)).hidden[0]
