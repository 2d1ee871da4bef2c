"""A store of blocks of prompts by the tokens that they depend on.

The least recently used blocks leave first.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np

from ..models.config import ModelConfig
from .prefix_blocks import BLOCK, Block


class Stored(NamedTuple):
    """A block in the store.

    Attributes:
      states: the recurrent states after the block by layer, empty for other models; None if nobody
        has seen the states at this place.
    """

    block: Block
    states: dict | None

    @property
    def nbytes(self) -> int:
        return sum(leaf.nbytes for leaf in jax.tree.leaves(tuple(self)))


class PrefixCache:
    """The store of an engine.

    A key stands for all tokens up to the end of a block. It is a digest, so that a key of a long
    prompt is as short as others.

    Args:
      most_bytes: the bytes of all blocks together; 0 turns the store off.
      longest: the longest prompt in tokens whose blocks are of use to others; None for any length.
    """

    def __init__(self, most_bytes: int, longest: int | None = None):
        self._most_bytes = most_bytes
        self._longest = longest
        self._bytes = 0
        self._blocks: OrderedDict[bytes, Stored] = OrderedDict()  # the least recently used first

    @property
    def is_on(self) -> bool:
        """Whether there is room for any block."""
        return self._most_bytes > 0

    def keys(self, prompt: Sequence[int]) -> list[bytes]:
        """The keys of the blocks of a prompt.

        Its last token, which is never read, is in no block.
        """
        if not self.is_on or self._longest is not None and len(prompt) > self._longest:
            return []
        return chain_keys(prompt, BLOCK)

    def find(self, keys: Sequence[bytes]) -> list[Stored]:
        """The blocks of the longest beginning that a row can continue."""
        blocks = []
        for key in keys:
            if key not in self._blocks:
                break
            blocks.append(self._blocks[key])
        while blocks and blocks[-1].states is None:
            blocks.pop()
        self._touch(keys[: len(blocks)])
        return blocks

    def add(self, keys: Sequence[bytes], first: int, blocks: Sequence[Stored]) -> None:
        """Stores the blocks of a prompt with these ``keys``, from block ``first`` on."""
        for key, stored in zip(keys[first:], blocks):
            if key in self._blocks:
                self._bytes -= self._blocks.pop(key).nbytes
            self._blocks[key] = stored
            self._bytes += stored.nbytes
        self._touch(keys[: first + len(blocks)])
        while self._bytes > self._most_bytes:
            self._bytes -= self._blocks.popitem(last=False)[1].nbytes

    def clear(self) -> None:
        """Empties the store. Blocks of other weights are of no use."""
        self._blocks.clear()
        self._bytes = 0

    def _touch(self, keys: Sequence[bytes]) -> None:
        """Makes the blocks the last to leave.

        Among them the first block of the prompt leaves last.
        """
        for key in reversed(keys):
            if key in self._blocks:
                self._blocks.move_to_end(key)


def chain_keys(text: Sequence[int], size: int, ahead: int = 0) -> list[bytes]:
    """The keys of the blocks of ``size`` tokens of a text, but for its last token.

    A key stands for all tokens up to the end of its block, and for the ``ahead`` tokens behind it.
    """
    tokens = np.asarray(text, np.int32)
    digest = b""
    keys = []
    for end in range(size, len(tokens) - ahead, size):
        digest = hashlib.sha256(digest + tokens[end - size : end].tobytes()).digest()
        keys.append(hashlib.sha256(digest + tokens[end : end + ahead].tobytes()).digest() if ahead else digest)
    return keys


def longest_shared_prompt(config) -> int | None:
    """The longest prompt in tokens whose keys do not depend on its length; None for any length.

    The rotary positions "dynamic" and "longrope" turn all keys of a prompt beyond the trained
    context by angles that depend on the prompt's length.
    """
    layers = [config.layer(i) for i in range(config.num_layers)] if isinstance(config, ModelConfig) else []
    ropes = [rope for layer in layers if (rope := getattr(layer.mixer, "rope", None)) is not None]
    return min(
        (r.original_max_position_embeddings for r in ropes if r.rope_type in ("dynamic", "longrope")), default=None
    )
