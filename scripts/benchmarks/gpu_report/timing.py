"""Times functions, summarises samples, and gives an empty compilation cache."""

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
    """The rate in GB/s at which a copy of a large array reads and writes bytes."""
    source = jnp.zeros(plan.copied // 2, jnp.bfloat16)
    copy = jax.jit(jnp.copy)
    seconds = alternate({"copy": lambda: timed(lambda: copy(source))}, plan.repeats)["copy"]
    return figure(2 * source.nbytes / seconds / 1e9)


def timed(call: Callable, calls: int = 1) -> float:
    """The seconds of a call. Several calls do not wait for each other, so Python adds no time."""
    began = time.perf_counter()
    for _ in range(calls):
        out = call()
    jax.block_until_ready(out)
    return (time.perf_counter() - began) / calls


def alternate(functions: dict, repeats: int) -> dict:
    """The seconds [repeats] that each function returns, in turns after three warm-ups each."""
    for function in functions.values():
        for _ in range(3):
            function()
    turns = [[function() for function in functions.values()] for _ in range(repeats)]
    return dict(zip(functions, np.array(turns).T))


@contextmanager
def persistent_cache():
    """Moves JAX's compilation cache to a new directory during the block."""
    with tempfile.TemporaryDirectory() as directory:
        before = configure(zip(CACHE_SETTINGS, (directory, 0.0, -1)))
        try:
            yield
        finally:
            configure(before.items())


def configure(settings) -> dict:
    """Changes options of the compilation cache, and returns their former values."""
    before = {}
    for name, value in settings:
        before[name] = getattr(jax.config, name)
        jax.config.update(name, value)
    compilation_cache.reset_cache()  # The cache reads its options only after a reset.
    return before


def figure(samples) -> dict:
    samples = np.asarray(samples, float)
    return {name: float(f"{f(samples):.5g}") for name, f in (("median", np.median), ("low", np.min), ("high", np.max))}


def failure(error: Exception) -> dict:
    first_line = str(error).strip().partition("\n")[0]
    return {"error": f"{type(error).__name__}: {first_line}"[:200]}
