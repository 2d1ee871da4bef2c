"""An EAGLE-3 head that learns from features that verification computes."""

import dataclasses

import jax
import numpy as np

from ...checkpoints.load import LanguageModel
from ...errors import RequestError
from ...heads import Eagle3Head
from .eagle3 import Eagle3Loss, load_eagle3
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
        return load_eagle3(self.start, target)


KIND = Kind("online", OnlineShape, Eagle3Loss, records=True, optimizer={"name": "adamw", "rate": 3e-4, "warmup": 10})
