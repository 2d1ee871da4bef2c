"""The options of an engine: its sizes, which are fixed when it is made."""

import dataclasses
from collections.abc import Sequence

from ..core.checks import LARGEST, per_row, whole
from ..errors import RequestError
from ..requests.limits import MOST_ROUNDS
from ..requests.options import MOST_LOGPROBS
from .batch_widths import check_widths
from .prompt_programs import LEAST_CHUNK

BOUNDS = {
    "slots": (1, LARGEST),
    "capacity": (1, LARGEST),
    "chunk": (LEAST_CHUNK, 512),
    "prompts_together": (1, 32),
    "rounds": (1, MOST_ROUNDS),
    "logprobs": (0, MOST_LOGPROBS),
    "prefix_bytes": (0, LARGEST),
    "blocks": (1, LARGEST),
    "constraint_states": (2, LARGEST),
    "constraint_classes": (1, LARGEST),
}
"""The least and the largest value of each field of ``EngineOptions`` that is a whole number."""


@dataclasses.dataclass(frozen=True)
class EngineOptions:
    """The options of an ``Engine`` beside its models and its method.

    Attributes:
      slots: rows of the batch, which are the texts decoded together.
      widths: numbers of rows below ``slots``. While no more rows run, a round computes so many rows
        in place of all slots. Each takes a compilation of its own, and as many rows of memory. By
        default a round computes all slots.
      capacity: positions of a slot, for prompt, new tokens and one draft. It becomes the next power
        of two, but no more than the model's context needs.
      chunk: the most tokens of a prompt that are read between two rounds, a power of two. By
        default the engine chooses up to 128, so that a chunk takes less time than the rounds beside
        it.
      prompts_together: the most prompts that are read together, a power of two, in blocks alone.
        Each has its share of a chunk. By default 4, and 1 on a CPU, where two prompts take twice
        the time of one.
      rounds: rounds of one step, at most 64. By default the engine chooses up to 32, so that they
        take about 20 ms, and has one on several hosts.
      logprobs: the largest value of a request's option ``logprobs``; None records none. With a
        number a request may also have ``policy_logprobs``.
      prefix_bytes: bytes of keys and values that are kept for later prompts with the same
        beginning; 0 keeps none. By default as many as those of one slot, and none on a mesh.
      blocks: blocks of 64 positions that all slots share. A slot then takes as many as its text
        needs, and prompts that begin alike have blocks in common. By default each slot has
        ``capacity`` positions of its own.
      memory: the share of the device's memory that may be in use, above 0 and at most 1; the rest
        of it becomes ``blocks``.
      constraint_states: states of the table of all running requests' constraints.
      constraint_classes: classes of tokens in that table.

    Raises RequestError for values out of bounds.
    """

    slots: int = 16
    widths: Sequence[int] = ()
    capacity: int = 4096
    chunk: int | None = None
    prompts_together: int | None = None
    rounds: int | None = None
    logprobs: int | None = None
    prefix_bytes: int | None = None
    blocks: int | None = None
    memory: float | None = None
    constraint_states: int = 4096
    constraint_classes: int = 1024

    def __post_init__(self):
        for name, (least, most) in BOUNDS.items():
            value = getattr(self, name)
            if value is not None or getattr(EngineOptions, name) is not None:
                object.__setattr__(self, name, whole(name, value, least, most))
        if self.memory is not None:
            object.__setattr__(self, "memory", float(per_row("memory", self.memory, 1, float, 0, 1, above=True)[0]))
        if self.blocks is not None and self.memory is not None:
            raise RequestError("blocks and memory both size the pool of blocks; give one of them")
        if self.in_blocks and self.prefix_bytes:
            raise RequestError("blocks keep the beginnings of prompts themselves; leave prefix_bytes out, or give 0")
        object.__setattr__(self, "widths", check_widths(self.widths, self.slots))
        if not self.in_blocks and (self.prompts_together or 1) > 1:
            raise RequestError("prompts_together needs blocks; give blocks or memory, or leave it out")
        for name, size in (("chunk", self.chunk), ("prompts_together", self.prompts_together)):
            if size is not None and size & (size - 1):
                raise RequestError(f"{name} must be a power of two, not {size}")

    @property
    def in_blocks(self) -> bool:
        """Whether slots share blocks."""
        return self.blocks is not None or self.memory is not None
