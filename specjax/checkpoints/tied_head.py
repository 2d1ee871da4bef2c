"""The output matrix of a checkpoint whose configuration says that it is the embedding."""

import warnings
from typing import Any

import numpy as np

from ..errors import SpecjaxWarning
from ..models.config import ModelConfig
from .blocks import name_of
from .families import names_in

_ROWS = 4096
"""The rows that are compared at once."""


def untie_if_different(config: ModelConfig, stored: dict[str, Any], where) -> ModelConfig:
    """The configuration, untied if the checkpoint has both tables and their numbers differ.

    Transformers keeps both tables then, whatever the configuration says.

    Args:
      stored: the checkpoint's tensors, see ``tensors.open_tensors``.
      where: the file of the configuration, for the warning.
    """
    names = names_in(config, stored)
    embed, head = name_of(names["embed"][0]), name_of(names["head"][0])
    both = config.tie_embeddings and embed != head and embed in stored and head in stored
    if not both or _equal(stored[embed], stored[head]):
        return config
    message = f"{where}: tie_word_embeddings is true, but the checkpoint's {head} differs from {embed}; both are used"
    warnings.warn(message, SpecjaxWarning, stacklevel=2)
    return config.replace(tie_embeddings=False)


def _equal(first, second) -> bool:
    """Whether two tensors [rows, columns] have the same numbers."""
    if tuple(first.get_shape()) != tuple(second.get_shape()):
        return False
    rows = first.get_shape()[0]
    pieces = [(slice(low, min(low + _ROWS, rows)), slice(None)) for low in range(0, rows, _ROWS)]
    return all(np.array_equal(first[piece], second[piece]) for piece in pieces)
