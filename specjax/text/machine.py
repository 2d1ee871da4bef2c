"""The machine, the versions and the form of the weights, under which a measurement holds."""

import os
import platform
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
