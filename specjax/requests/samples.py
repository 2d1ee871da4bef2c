"""Several samples of one prompt: a random key and a row of the arrays for each sample.

Row b * n + i is sample i of prompt b.
"""

import jax
import jax.numpy as jnp
import numpy as np

from ..core.checks import per_row
from ..core.sampling import random_keys

_SAMPLES = 2**32 - 1
"""This number is folded into the keys of samples. Decoding folds smaller numbers into a key."""


def read_seeds(seeds, batch: int) -> tuple[np.ndarray, np.ndarray]:
    """The seeds uint32 [B] of the option ``seed``, and bool [B], whether the user gave them.

    Raises RequestError for a value that is no seed.
    """
    several = isinstance(seeds, list | tuple)
    own = np.array([seed is not None for seed in seeds] if several else [seeds is not None] * batch, bool)
    filled = [0 if seed is None else seed for seed in seeds] if several else 0 if seeds is None else seeds
    return per_row("seed", filled, batch, np.uint32, most=2**32 - 1), own


def make_keys(seeds: np.ndarray, n: int = 1) -> jax.Array:
    """The typed keys [B * n] of the samples of prompts with ``seeds`` [B].

    Seeds are whole numbers from 0 to 2^32 - 1. Sample 0 has the key of its prompt's seed, so it
    does not depend on ``n``. Sample i > 0 has the key ``fold_in(fold_in(key, 2^32 - 1), i)``. Two
    keys have the same 64 bits with probability 2^-64.
    """
    keys = repeat_rows(random_keys(seeds, len(seeds)), n)
    if n == 1:
        return keys
    sample = np.tile(np.arange(n, dtype=np.uint32), len(seeds))
    return jnp.where(jax.device_put(sample == 0), keys, _fold(keys, sample))


def key_of_sample(keys: jax.Array, sample: int) -> jax.Array:
    """The typed keys [B] of the sample with a number above 0, from the keys [B] of sample 0."""
    return _fold(keys, np.full(len(keys), sample, np.uint32))


def _fold(keys: jax.Array, sample: np.ndarray) -> jax.Array:
    fold_in = jax.vmap(jax.random.fold_in)
    return fold_in(fold_in(keys, jax.device_put(np.full_like(sample, _SAMPLES))), jax.device_put(sample))


def repeat_rows(values, n: int):
    """Repeats each row of the arrays [B, ...] of a pytree ``n`` times: [B * n, ...]."""
    repeat = lambda x: (np if isinstance(x, np.ndarray) else jnp).repeat(x, n, axis=0)
    return values if n == 1 else jax.tree.map(repeat, values)
