"""The likelihood of the options of a multiple choice under the target."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ....checkpoints.load import LanguageModel
from ....loop.prefill import pad_prompts


def option_logprobs(target: LanguageModel, prompt: str, options: Sequence[str]) -> list[float]:
    """The log-probability of each option after the prompt: the sum over its tokens.

    The tokens of an option are those that it adds to the prompt. Lengths are padded to powers of
    two, which saves compilations.
    """
    start = len(target.tokenizer.encode(prompt))
    return [_logprob(target, target.tokenizer.encode(prompt + option), start) for option in options]


def _logprob(target: LanguageModel, ids: list[int], start: int) -> float:
    size, width = (1 << (n - 1).bit_length() for n in (len(ids), len(ids) - start))
    tokens, _ = pad_prompts([ids], size + width)
    logprobs = _after(target.model, tokens, jnp.int32(start), width)
    return float(np.sum(np.asarray(logprobs)[: len(ids) - start]))


@jax.jit(static_argnums=3)
def _after(model, tokens, start, width: int):
    """The log-probabilities [width] of the tokens from place ``start`` on."""
    positions = jnp.arange(tokens.shape[1])[None]
    mask = jnp.tril(jnp.ones((tokens.shape[1],) * 2, bool))
    hidden = model(tokens, positions, mask).hidden
    before = lax.dynamic_slice_in_dim(hidden, start - 1, width, axis=1)
    chosen = lax.dynamic_slice_in_dim(tokens, start, width, axis=1)
    logprobs = jax.nn.log_softmax(model.logits(before).astype(jnp.float32))
    return jnp.take_along_axis(logprobs, chosen[..., None], 2)[0, :, 0]
