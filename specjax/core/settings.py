"""The JAX settings under which specjax traces its functions, in any surrounding program."""

from collections.abc import Iterator
from contextlib import contextmanager

import jax


@contextmanager
def own_settings() -> Iterator[None]:
    """A context, also a decorator, in which numbers have 32 bits and shapes broadcast freely.

    Programs that set ``jax_enable_x64`` or ``jax_numpy_rank_promotion="raise"`` get the same tokens
    as all others.
    """
    with jax.enable_x64(False), jax.numpy_rank_promotion("allow"):
        yield
