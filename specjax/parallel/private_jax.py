"""The names of JAX that specjax uses though they are not public. No other module uses any."""

from typing import Any


def store_of_processes() -> Any:
    """The store of keys and values that the joined processes share.

    It is None before they join and after they end. ``jax.distributed`` starts this store, and has
    no public name for it (jax 0.10 to 0.12). A store of our own would need a second port on the
    first host.
    """
    from jax._src import distributed

    return distributed.global_state.client
