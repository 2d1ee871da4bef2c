"""Measuring methods against each other: prompts, alternating runs, tables."""

from .datasets import held_out_prompts, read_prompts
from .runner import compare, machine

__all__ = ["compare", "held_out_prompts", "machine", "read_prompts"]
