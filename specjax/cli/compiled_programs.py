"""JAX's cache of compiled programs, from which a later command takes them."""

from functools import partial

import jax

from ..text.machine import cache_folder


def keep_programs() -> str | None:
    """Keeps compiled programs in a folder, by JAX's cache. Returns it, or None for no cache.

    A folder that the user has set stays, and so does a cache that is switched off.
    """
    setting = partial(getattr, jax.config)
    if not setting("jax_enable_compilation_cache"):
        return None
    if setting("jax_compilation_cache_dir") is None:
        jax.config.update("jax_compilation_cache_dir", str(cache_folder() / "programs"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
    return setting("jax_compilation_cache_dir")
