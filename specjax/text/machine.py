"""The machine, the versions and the form of the weights, under which a measurement holds."""

import os
import platform
from functools import partial
from pathlib import Path

import flax
import jax

from ..checkpoints.load import LanguageModel
from ..kernels.cpu import product as product_kernel
from ..kernels.cpu.processor import matrix_extensions, processor
from ..models.quantised_weights import scheme_of


def cache_folder() -> Path:
    """The folder for files that a later run of this user need not compute again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "specjax"


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


def machine(target: LanguageModel) -> dict:
    """Describes a measurement's machine: device, processor, versions, and dtype of the weights."""
    return {
        "platform": jax.default_backend(),
        "device": jax.devices()[0].device_kind,
        "devices": jax.device_count(),
        "cpu": processor(),
        "matrix_extensions": list(matrix_extensions()),
        "product_kernel": product_kernel.is_installed(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "jax": jax.__version__,
        "flax": flax.__version__,
        "dtype": str(target.model.embed[...].dtype),
        "quantize": scheme_of(target.model),
    }
