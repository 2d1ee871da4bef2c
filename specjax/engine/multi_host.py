"""Engines on several hosts.

Process 0 takes the requests, and the engines of all processes make the same steps.

Before each step process 0 tells the others which requests came and which were cancelled. The rest
of a step follows from these and from the tokens, so every process makes the same calls of the
device.
"""

import pickle
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

BEAT = 1.0
"""The seconds after which process 0 makes an empty step.

A process that waits longer for a broadcast might give up.
"""

_INLINE = 1024
"""The bytes of a message that one broadcast has room for. A longer message takes a second one."""


def broadcast(content: Any) -> None:
    """Sends ``content`` from process 0 to all others, which must call ``receive``."""
    _exchange(pickle.dumps(content))


def receive() -> Any:
    """The content that process 0 broadcasts, in another process."""
    return pickle.loads(_exchange(b""))


def _exchange(message: bytes) -> bytes:
    """The message of process 0. Sizes are powers of two, so that few programs are compiled."""
    first = np.zeros(_INLINE, np.uint8)
    head = np.frombuffer(len(message).to_bytes(8, "little") + message, np.uint8)
    first[: len(head)] = head[:_INLINE]
    first = np.asarray(multihost_utils.broadcast_one_to_all(first))
    size = int.from_bytes(first[:8].tobytes(), "little")
    rest = np.zeros(1 << (max(size + 8 - _INLINE, 1) - 1).bit_length(), np.uint8)
    if size + 8 <= _INLINE:
        return first[8 : 8 + size].tobytes()
    if jax.process_index() == 0:
        rest[: len(head) - _INLINE] = head[_INLINE:]
    rest = np.asarray(multihost_utils.broadcast_one_to_all(rest))
    return (first[8:].tobytes() + rest.tobytes())[:size]
