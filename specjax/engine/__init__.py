"""Continuous batching: requests come and go while a batch of fixed width is decoded.

``slots`` has the pure functions of the device, ``request`` reads a request, ``handle`` is what the
user holds, and ``engine`` has the step that joins them.
"""

from .engine import Engine
from .handle import Handle

__all__ = ["Engine", "Handle"]
