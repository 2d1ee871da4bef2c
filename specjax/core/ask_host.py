"""Calls a function of the host from a running program."""

from collections.abc import Callable
from functools import partial

import jax
import numpy as np
from jax import lax

from ..kernels.cpu import host_call


def ask_host(function: Callable, answer: jax.ShapeDtypeStruct, asked: jax.Array) -> jax.Array:
    """The array that ``function(asked, answer)`` writes.

    Args:
      function: a function of a module, for numpy arrays. It raises no exception, and its answer
        depends on ``asked`` alone.
      answer: the shape and dtype of the answer: [B, M], int32 or uint32.
      asked: int32 [B, L]. One array, because each argument of a call takes time.
    """

    def by_callback(asked: jax.Array) -> jax.Array:
        def ask(asked) -> np.ndarray:
            written = np.empty(answer.shape, answer.dtype)
            function(np.asarray(asked), written)
            return written

        return jax.pure_callback(ask, answer, asked)

    if not host_call.fits():
        return by_callback(asked)
    in_place = partial(host_call.call_host, function, answer)
    return lax.platform_dependent(asked, cpu=in_place, default=by_callback)
