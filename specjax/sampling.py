"""The one path from logits to probabilities, used by plain decoding, by drafters and by verification alike.

Losslessness rests on p and q coming out of the same pipeline, so nothing else in specjax touches logits. Options are arrays over
the batch: requests with different options share one compiled program. Order and meaning are those of transformers: penalties
(history-dependent, at the place marked below), temperature, top-k, top-p, min-p.
"""

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from .request import per_row


@struct.dataclass
class SamplingParams:
    """Options of each row.

    Attributes:
      temperature: float32 [B]. 0 is greedy: all probability on the likeliest token.
      top_k: int32 [B]. Keep the k likeliest tokens; 0 keeps all.
      top_p: float32 [B], in (0, 1]. Keep the likeliest tokens that together reach this probability.
      min_p: float32 [B], in [0, 1]. Drop tokens less likely than this fraction of the likeliest.
    """

    temperature: jax.Array
    top_k: jax.Array
    top_p: jax.Array
    min_p: jax.Array


def sampling_params(batch: int, temperature=0.0, top_k=0, top_p=1.0, min_p=0.0) -> SamplingParams:
    """Checked options for ``batch`` rows; each is one value for all or a list with one per row. Raises RequestError."""
    options = (
        per_row("temperature", temperature, batch, np.float32),
        per_row("top_k", top_k, batch, np.int32),
        per_row("top_p", top_p, batch, np.float32, most=1, above=True),
        per_row("min_p", min_p, batch, np.float32, most=1),
    )
    return SamplingParams(*map(jnp.asarray, options))


def probabilities(logits: jax.Array, params: SamplingParams) -> jax.Array:
    """Distributions that the options make of logits: float32 [B, N, V] to float32 [B, N, V], one-hot in greedy rows.

    Work that no row asks for is not done: a batch of greedy rows costs an argmax, one without truncation no sort.
    """
    logits = logits.astype(jnp.float32)  # penalties and biases act here, before temperature
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


def _one_hot_argmax(logits: jax.Array) -> jax.Array:
    return jax.nn.one_hot(jnp.argmax(logits, -1), logits.shape[-1])


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
