"""Measuring methods against each other: prompts, alternating runs, tables."""

from .comparison import compare, left_out, machine
from .datasets import edit_prompts, held_out_prompts, read_prompts

__all__ = ["compare", "edit_prompts", "held_out_prompts", "left_out", "machine", "read_prompts"]
