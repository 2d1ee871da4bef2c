"""Continuous batching: requests come and go while a batch of fixed width is decoded.

``options`` has the sizes of an engine. ``slots``, ``row_subset`` and ``prefix_blocks`` have the
pure functions of the device, and ``programs`` compiles them. ``batch_widths`` has the number of
rows that a round computes. ``request`` reads a request, and ``handle`` is the user's part of it.
``prompt_reader`` reads prompts, in chunks that ``step_size`` chooses, and ``prefix_cache`` stores
their beginnings. ``constraints`` has the table of all requests' constraints. ``scheduler`` gives
slots to requests in the order of ``fair_queue``, ``engine`` has the step that joins these, and
``warm_start`` compiles programs ahead.
"""

from .batch_widths import usual_widths
from .engine import Engine
from .fair_queue import Standing
from .handle import Handle
from .options import EngineOptions
from .warm_start import WarmStart, warm_up

__all__ = ["Engine", "EngineOptions", "Handle", "Standing", "WarmStart", "usual_widths", "warm_up"]
