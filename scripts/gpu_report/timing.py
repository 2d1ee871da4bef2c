"""Times of functions, their figures, and compilation with an empty cache."""

import tempfile
import time
from collections.abc import Callable
from contextlib import contextmanager

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.compilation_cache import compilation_cache
from plan import Plan

CACHE_SETTINGS = (
    "jax_compilation_cache_dir",
    "jax_persistent_cache_min_compile_time_secs",
    "jax_persistent_cache_min_entry_size_bytes",
)


def copy_bandwidth(plan: Plan) -> dict:
    """Bytes read and written each second, in GB/s, by copying a large array."""
    source = jnp.zeros(plan.copied // 2, jnp.bfloat16)
    copy = jax.jit(jnp.copy)
    seconds = alternate({"copy": lambda: timed(lambda: copy(source))}, plan.repeats)["copy"]
    return figure(2 * source.nbytes / seconds / 1e9)


def timed(call: Callable, calls: int = 1) -> float:
    """Seconds of a call. Several calls follow one another without waiting, so that the device sets the pace and not Python."""
    began = time.perf_counter()
    for _ in range(calls):
        out = call()
    jax.block_until_ready(out)
    return (time.perf_counter() - began) / calls


def alternate(functions: dict, repeats: int) -> dict:
    """Samples [repeats] of each function, which returns seconds: three warm-up calls each, then in turns."""
    for function in functions.values():
        for _ in range(3):
            function()
    turns = [[function() for function in functions.values()] for _ in range(repeats)]
    return dict(zip(functions, np.array(turns).T))


@contextmanager
def persistent_cache():
    """JAX's compilation cache is in a new directory, and afterwards where it was."""
    with tempfile.TemporaryDirectory() as directory:
        before = configure(zip(CACHE_SETTINGS, (directory, 0.0, -1)))
        try:
            yield
        finally:
            configure(before.items())


def configure(settings) -> dict:
    """Changes options of the compilation cache and returns what they were."""
    before = {}
    for name, value in settings:
        before[name] = getattr(jax.config, name)
        jax.config.update(name, value)
    compilation_cache.reset_cache()  # it reads its options only then
    return before


def figure(samples) -> dict:
    samples = np.asarray(samples, float)
    return {name: float(f"{f(samples):.5g}") for name, f in (("median", np.median), ("low", np.min), ("high", np.max))}


def failure(error: Exception) -> dict:
    return {
        "error": f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"[:200]
    }
