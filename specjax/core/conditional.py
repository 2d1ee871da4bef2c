"""A condition on the device that copies no cache."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax


def run_if(wanted: jax.Array, function: Callable, carry):
    """``function(carry)`` if the scalar bool ``wanted`` is true, else ``carry``.

    A loop of at most one iteration replaces ``lax.cond``, whose branches copy caches on XLA:CPU.
    """
    return lax.while_loop(lambda loop: loop[0], lambda loop: (jnp.bool(False), function(loop[1])), (wanted, carry))[1]
