"""A condition on the device that copies no cache."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax


def run_if(condition: jax.Array, function: Callable, carry):
    """``function(carry)`` if the scalar bool ``condition`` is true, else ``carry``.

    A loop of at most one iteration replaces ``lax.cond``, whose branches copy caches on XLA:CPU.
    """

    def once(loop):
        return jnp.bool(False), function(loop[1])

    return lax.while_loop(lambda loop: loop[0], once, (condition, carry))[1]
