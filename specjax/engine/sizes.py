"""The sizes of an engine that follow from its options and its models."""

import dataclasses
from typing import Any

import jax

from ..parallel import several_hosts
from ..text.generator import Generator
from .options import EngineOptions
from .prompt_programs import LEAST_CHUNK
from .step_size import StepSize

_USUAL_CHUNK = 128
_USUAL_PROMPTS = 4
_USUAL_ROUNDS = 32
_BLOCK = 64
"""Positions of a block. A row leaves half a block empty on average."""


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The sizes of an engine.

    Attributes:
      capacity: positions of a row.
      block: positions of a block; None for fixed slots.
      chunk, least_chunk: the most and the fewest tokens of a chunk, while rows run.
      prompts: the most prompts that are read together; a chunk has room for ``LEAST_CHUNK`` tokens
        of each.
      rounds, least_rounds: the most and the fewest rounds of a step.
      prefix_bytes: see ``EngineOptions``; 0 with blocks.
    """

    capacity: int
    block: int | None
    chunk: int
    least_chunk: int
    prompts: int
    rounds: int
    least_rounds: int
    prefix_bytes: int | None

    @staticmethod
    def of(options: EngineOptions, generator: Generator) -> "Sizes":
        """The sizes for these options."""
        mesh = generator.session.mesh
        # The clocks of several hosts differ, and all of them must run the same rounds and chunks.
        by_time = mesh is None or not several_hosts()
        chunk = options.chunk or _USUAL_CHUNK
        need = min(options.capacity, generator.target.config.context + generator.drafter.depth + 1)
        capacity = max(1 << (need - 1).bit_length(), chunk)
        prompts = options.prompts_together or (1 if jax.default_backend() == "cpu" else _USUAL_PROMPTS)
        return Sizes(
            capacity=capacity,
            block=min(_BLOCK, capacity) if options.in_blocks else None,
            chunk=chunk,
            least_chunk=LEAST_CHUNK if options.chunk is None and by_time else chunk,
            prompts=min(prompts, chunk // LEAST_CHUNK) if options.in_blocks else 1,
            rounds=options.rounds or (_USUAL_ROUNDS if by_time else 1),
            least_rounds=options.rounds or 1,
            prefix_bytes=options.prefix_bytes if mesh is None and not options.in_blocks else 0,
        )

    def pace(self) -> StepSize:
        """Chooses rounds and chunks within these sizes."""
        return StepSize(self.least_chunk, self.chunk, self.least_rounds, self.rounds)

    def of_programs(self, options: EngineOptions) -> dict[str, Any]:
        """The arguments of ``Programs``."""
        rows = dict(count=options.slots, widths=options.widths)
        rows |= dict(chunk=self.chunk, block=self.block, prompts=self.prompts)
        return rows | dict(most_rounds=self.rounds, logprobs=options.logprobs, beside=self.prefix_bytes)
