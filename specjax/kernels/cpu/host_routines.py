"""Functions of the host as C functions, which work in the memory of the program that calls them."""

import ctypes
import functools
from collections.abc import Callable
from typing import Any

import numpy as np

_ROUTINE = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64] * 2)

_VIEWS = 256
"""The arrays that are kept: a program has its operands in the same places in each round."""

_routines: dict[str, Any] = {}
"""The C functions by their names. Programs call them as long as the process lives."""


def name_of_routine(function: Callable, dtype: np.dtype) -> str:
    """The name of the C function that calls ``function(asked, answer)``; it is made once.

    The name is the same in each process, so that compiled programs may be kept on disk.

    ``function``: see ``core.ask_host``.
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
