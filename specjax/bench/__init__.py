"""Measuring methods against each other: prompts, alternating runs, tables."""

from .datasets import edit_prompts, held_out_prompts, read_prompts
from .runner import compare, left_out, machine

__all__ = ["compare", "edit_prompts", "held_out_prompts", "left_out", "machine", "read_prompts"]
