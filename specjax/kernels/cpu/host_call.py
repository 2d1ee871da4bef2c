"""Calls of the host's functions from a program on CPU, in the program's own memory.

A callback of JAX copies the operand to a device and the answer into an array. Beside a model whose
weights fill the processor's caches that takes 0.4 ms, the kernel 0.05 ms.
"""

import ctypes
import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from .product import is_installed


def fits() -> bool:
    """Whether there is a kernel. XLA cannot split it, so a mesh of several devices has none."""
    return jax.sharding.get_abstract_mesh().size <= 1 and is_installed()


def call_host(function: Callable, result: jax.ShapeDtypeStruct, asked: jax.Array) -> jax.Array:
    """The array that ``function(asked, answer)`` writes, see ``core.ask_host``."""
    from . import host_call_llvm, llvm  # need llvmlite

    kernel = llvm.register(host_call_llvm.host_call, name_of_routine(function, np.dtype(result.dtype)))
    return jax.ffi.ffi_call(kernel, result, vmap_method="sequential")(asked)


_ROUTINE = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64] * 2)

_VIEWS = 256
"""The arrays that are kept: a program has its operands in the same places in each round."""

_routines: dict[str, Any] = {}
"""The C functions by their names. Programs call them as long as the process lives."""


def name_of_routine(function: Callable, dtype: np.dtype) -> str:
    """The name of the C function that calls ``function(asked, answer)``; it is made once.

    The name is the same in each process, so that compiled programs may be kept on disk.

    Args:
      function: see ``core.ask_host``.
      dtype: the dtype of the answer.
    """
    name = "_".join([*function.__module__.split("."), function.__name__, dtype.name])
    if name not in _routines:
        _routines[name] = _make(function, ctypes.c_int32 if dtype == np.int32 else ctypes.c_uint32)
    return name


def address_of(name: str) -> int:
    """The address of a C function."""
    return ctypes.cast(_routines[name], ctypes.c_void_p).value or 0


def _make(function: Callable, numbers: Any):
    def run(asked: int, rows: int, columns: int, answer: int, answers: int, words: int) -> None:
        function(_view(asked, rows, columns, ctypes.c_int32), _view(answer, answers, words, numbers))

    return _ROUTINE(run)


@functools.lru_cache(_VIEWS)
def _view(address: int, rows: int, columns: int, of: Any) -> np.ndarray:
    return np.frombuffer((of * (rows * columns)).from_address(address), of).reshape(rows, columns)
