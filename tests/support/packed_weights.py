"""Weights of fewer bits with random numbers, and the same numbers in float64."""

import jax
import jax.numpy as jnp
import numpy as np

from specjax.models.quantised_weights import Quantised, pack


def random_weight(
    outputs: int, inputs: int, group: int, scheme: str, offsets: bool, dtype: str = "bfloat16"
) -> tuple[Quantised, np.ndarray]:
    """A weight of random numbers, and its numbers in float64, read as its definition says."""
    rng = np.random.default_rng(outputs)
    low, high = (-128, 127) if scheme.startswith("int8") else (0, 15) if offsets else (-8, 7)
    q = rng.integers(low, high, (outputs, inputs), np.int8, endpoint=True)
    scales, shifts = (rng.normal(size=(outputs, inputs // group)).astype(np.float32) for _ in range(2))
    values = jnp.asarray(q) if high == 127 else jax.jit(pack, static_argnums=1)(q, group)
    weight = Quantised(values, jnp.asarray(scales), scheme, jnp.dtype(dtype), jnp.asarray(shifts) if offsets else None)
    spread = lambda x: np.repeat(np.float64(x), group, 1)
    return weight, q * spread(scales) + spread(shifts) * offsets


def rows_of(count: int, inputs: int) -> np.ndarray:
    """Random rows float32 [count, inputs], some of whose numbers are large."""
    return np.random.default_rng(count).standard_t(4, (count, inputs)).astype(np.float32)
