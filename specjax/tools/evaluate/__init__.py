"""Measures methods against each other: prompts, alternating runs, tables."""

from .comparison import compare, left_out, machine
from .conversations import chat_prompts
from .datasets import edit_prompts, held_out_prompts, read_conversations, read_prompts

__all__ = [
    "chat_prompts",
    "compare",
    "edit_prompts",
    "held_out_prompts",
    "left_out",
    "machine",
    "read_conversations",
    "read_prompts",
]
