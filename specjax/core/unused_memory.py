"""Memory that the process no longer uses."""

import ctypes
import os


def return_unused() -> None:
    """Returns memory to the system that the C library keeps for later.

    Compilation and temporary arrays leave such memory. The C library glibc alone has a function for
    it, and elsewhere nothing is returned.
    """
    if os.name == "posix" and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)):
        trim(0)
