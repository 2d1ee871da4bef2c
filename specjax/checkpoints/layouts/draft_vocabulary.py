"""The tensors of a draft vocabulary: the offsets ``d2t`` and the marks ``t2d``.

Token i of the draft vocabulary is token ``i + d2t[i]`` of the target. ``t2d`` marks the tokens of
the target that the draft vocabulary has.
"""

import numpy as np

from ...errors import CheckpointError
from .base import RawCheckpoint


def check_offsets(offsets: np.ndarray, vocab_size: int, checkpoint: RawCheckpoint) -> None:
    """Raises CheckpointError for offsets that cannot be those of a draft vocabulary.

    Such offsets leave the target's vocabulary, name a token twice, or contradict ``t2d``.
    """
    offsets = offsets.astype(np.int64)
    if offsets.ndim != 1 or not offsets.size:
        raise CheckpointError(
            f"{checkpoint.where}: d2t has the shape {offsets.shape}; it holds an offset for each token"
        )
    known = np.arange(offsets.size) + offsets
    if known.min() < 0 or known.max() >= vocab_size:
        raise CheckpointError(
            f"{checkpoint.where}: d2t leads outside the vocabulary of {vocab_size}; "
            "it holds offsets: token i is i + d2t[i]"
        )
    if np.unique(known).size < known.size:
        raise CheckpointError(
            f"{checkpoint.where}: d2t maps two tokens to one; it holds offsets: token i is i + d2t[i]"
        )
    if offsets.size == vocab_size and offsets.any():
        raise CheckpointError(
            f"{checkpoint.where}: d2t is not zero although the head knows the whole vocabulary; remove d2t and t2d"
        )
    if "t2d" not in checkpoint or "d2t" not in checkpoint:
        return
    stored = checkpoint.tensors["t2d"]
    shape = tuple(stored.get_shape())
    if shape != (vocab_size,):
        raise CheckpointError(
            f"{checkpoint.where}: t2d has the shape {shape}, not {(vocab_size,)}; it marks tokens of the target"
        )
    marked = np.asarray(stored[(slice(None),)]).astype(bool)
    if not np.array_equal(np.flatnonzero(marked), np.sort(known)):
        raise CheckpointError(
            f"{checkpoint.where}: t2d and d2t name different tokens; the mapping of the draft vocabulary is damaged"
        )


def add_marks(tensors: dict[str, np.ndarray], vocab_size: int) -> dict[str, np.ndarray]:
    """The tensors; for a draft vocabulary with ``d2t`` as int64 and with ``t2d``."""
    if "d2t" not in tensors:
        return tensors
    offsets = tensors["d2t"].astype(np.int64)
    known = np.zeros(vocab_size, bool)
    known[np.arange(offsets.size) + offsets] = True
    return tensors | {"d2t": offsets, "t2d": known}
