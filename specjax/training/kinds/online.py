"""An EAGLE-3 head that learns from features that verification computes."""

import dataclasses

import jax
import numpy as np

from ...checkpoints.heads import load_drafter
from ...checkpoints.load import LanguageModel
from ...errors import RequestError
from ...heads import Eagle3Head, Head
from .eagle3 import Eagle3Loss
from .shared import Kind, Shape


@dataclasses.dataclass(frozen=True)
class OnlineShape(Shape):
    """A head that exists.

    Attributes:
      start: the head to continue from: an embedded name, a directory or a hub id.
    """

    start: str = ""

    def reach(self, loss) -> int:
        return loss.steps

    def make(self, target: LanguageModel, stream: np.ndarray, key: jax.Array) -> Eagle3Head:
        """The head ``start`` in float32. Raises RequestError if it is no EAGLE-3 head."""
        if not self.start:
            raise RequestError("kind 'online' continues a head; name it with --draft, or as start in [head]")
        head = load_drafter(self.start, target, "float32")
        if not isinstance(head, Head) or not isinstance(head.module, Eagle3Head):
            raise RequestError(f"kind 'online' continues a head of kind 'eagle3', and {self.start!r} is none")
        return head.module


KIND = Kind("online", OnlineShape, Eagle3Loss, records=True, optimizer={"name": "adamw", "rate": 3e-4, "warmup": 10})
