"""Continuous batching: requests come and go while a batch of fixed width is decoded.

``options`` has the sizes of an engine.
``slots``, ``narrow`` and ``blocks`` have the pure functions of the device, and ``programs`` compiles them.
``widths`` says how many rows a round computes.
``request`` reads a request, and ``handle`` is the user's part of it. ``reading`` reads prompts, with a
``pace`` and a store of ``prefixes``. ``constraints`` has the table of all requests' constraints, and
``engine`` has the step that joins these.
"""

from .batch_widths import usual_widths
from .engine import Engine
from .handle import Handle
from .options import EngineOptions

__all__ = ["Engine", "EngineOptions", "Handle", "usual_widths"]
