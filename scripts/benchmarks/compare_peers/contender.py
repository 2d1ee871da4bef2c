"""A contender: a program with weights in one form and one way to decode."""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

BITS = {
    "float32": 32, "bfloat16": 16, "BF16": 16, "F16": 16, "int8": 8, "Q8_0": 8, "int4": 4, "stored": 4, "Q4_0": 4, "Q4_1": 4,
}  # fmt: skip
"""The bits of a weight in each form. ``stored`` has the numbers of a GGUF file of four bits."""


class Answer(NamedTuple):
    """The greedy continuation of a prompt.

    Attributes:
      text: the new text.
      count: the new tokens.
      seconds: those of decoding alone, without the prompt.
    """

    text: str
    count: int
    seconds: float


@dataclasses.dataclass(frozen=True)
class Contender:
    """A function from token ids to an ``Answer``.

    Attributes:
      peer: the program.
      form: the form of the weights, one of ``BITS``.
      method: "plain", or the program's way to draft.
    """

    peer: str
    form: str
    method: str
    run: Callable[[list[int]], Answer] = dataclasses.field(compare=False, repr=False)

    @property
    def bits(self) -> int:
        return BITS[self.form]

    def __str__(self) -> str:
        return f"{self.peer} {self.form}, {self.method}"
