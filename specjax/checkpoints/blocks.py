"""The blocks of rows of a checkpoint's tensors that make up a parameter.

A parameter is a stack of blocks, and a block is some rows of a tensor. One table of names serves
reading, writing and checking. Each device reads only the rows that it holds. The table has no
shapes: the model knows them.
"""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ..models.config import ModelConfig
from ..models.feed_forwards import ExpertsConfig, GatedMlpConfig
from ..models.mixers import AttentionConfig, DeltaRuleConfig, LatentAttentionConfig

TRANSPOSED = "^T"
"""The end of a name in a table whose tensor is [in, out]."""

INTERLEAVED = "^I"
"""The end of a name in a table whose tensor pairs neighbouring dimensions for rotary positions."""

_NUMBER = {letter: re.compile(rf"(?<![A-Za-z]){letter}(?![A-Za-z])") for letter in "NM"}


class Block(NamedTuple):
    """Rows of the source tensor ``name``: every ``step``-th from ``start`` to before ``stop``.

    ``transposed`` says that the rows are columns of the tensor. The last row is ``stop - 1``.
    """

    name: str
    start: int
    stop: int
    step: int = 1
    transposed: bool = False

    @property
    def size(self) -> int:
        """The number of rows."""
        return (self.stop - self.start - 1) // self.step + 1

    def part(self, low: int, high: int) -> "Block":
        """The rows of the block from number ``low`` to before number ``high``."""
        start = self.start + low * self.step
        return self._replace(start=start, stop=start + (high - low - 1) * self.step + 1)

    def shape(self, rest: tuple[int, ...]) -> tuple[int, ...]:
        """The least shape of the tensor that has the block; ``rest`` is the shape of a row."""
        return (*rest, self.stop) if self.transposed else (self.stop, *rest)

    def read(self, tensor, rest: tuple[slice, ...] = ()) -> np.ndarray:
        """The rows of a tensor that is read by slices, or of their part ``rest``."""
        rows = slice(self.start, self.stop)
        return (tensor[(*rest, rows)].T if self.transposed else tensor[(rows, *rest)])[:: self.step]

    def write(self, tensor: np.ndarray, values: np.ndarray) -> None:
        """Sets the rows in a tensor."""
        (tensor.T if self.transposed else tensor)[self.start : self.stop : self.step] = values


def source_names(path: str, names: Mapping[str, Sequence[str]]) -> list[str]:
    """The tensors of the parameter at ``path``.

    Args:
      path: the path of a parameter, such as "layers.3.mixer.qkv".
      names: the tensors of each path. A path stands there as it is, or with N for each of its
        numbers. In the names of tensors, N stands for the path's first number and M for its second.
    """
    numbers, found = re.findall(r"\d+", path), []
    for name in names[path if path in names else re.sub(r"\d+", "N", path)]:
        for letter, number in zip("NM", numbers):
            name = _NUMBER[letter].sub(number, name)
        found.append(name)
    return found


def blocks(path: str, rows: int, names: Mapping[str, Sequence[str]], config: ModelConfig | None) -> list[Block]:
    """The blocks of rows that make up the parameter at ``path``, in order.

    Queries, keys and values go by key head: first its G query heads, then its key, then its value.
    Copies of a key head have the same rows. The gate and the up projection go by parts, see
    ``feed_forwards.gated``, the delta rule's parameters by key head, see ``DeltaRuleConfig.stacked``,
    and parameters of latent attention as in ``_latent``. Tensors that the table gives one name
    follow one another in one tensor. A single tensor with queries, keys and values has them head by
    head. Norms of queries and keys have the order of a head.

    Args:
      path: the path of the parameter.
      rows: the number of rows of the parameter.
      names: see ``source_names``. A name may end in ``TRANSPOSED`` or ``INTERLEAVED``.
      config: the configuration of the model, None for a module without layers.
    """
    sources = source_names(path, names)
    config = config.encoder if config and path.startswith("encoder.") else config
    found = re.search(r"layers\.(\d+)\.(mixer|mlp)\.([\w.]+)$", path)
    layer = config.layer(int(found[1])) if found and config else None
    if layer is not None and isinstance(layer.mixer, AttentionConfig):
        if found and found[3] in ("qkv", "qkv_bias"):
            return _heads(sources, layer.mixer)
        if found and found[3] in ("q_norm", "k_norm") and not layer.mixer.whole_qk_norm:
            return _rotated(sources[0], 0, 1, layer.mixer, True)
        if found and found[3] == "k_norm" and layer.mixer.whole_qk_norm:
            copies, D = layer.mixer.kv_copies, layer.mixer.head_dim
            heads = [k // copies for k in range(layer.mixer.num_kv_heads)]
            return [Block(sources[0], k * D, (k + 1) * D) for k in heads]
        if found and found[3] in ("q_norm", "k_norm") and sources:
            return _rotated(sources[0], 0, rows // layer.mixer.head_dim, layer.mixer, True)
    if layer is not None and isinstance(layer.mixer, DeltaRuleConfig):
        if found and found[2] == "mixer" and len(sources) > 1:
            return _key_heads(sources, layer.mixer.stacked[found[3]], layer.mixer.key_heads)
    if layer is not None and isinstance(layer.mixer, LatentAttentionConfig):
        if found and found[2] == "mixer":
            return _latent(found[3], sources, rows, layer.mixer)
    mlp = layer.mlp if layer else None
    mlp = mlp.shared if isinstance(mlp, ExpertsConfig) else mlp
    if isinstance(mlp, GatedMlpConfig) and len(sources) == 2:
        return _gates(sources, mlp)
    name, transposed, _ = _read_marks(sources[0]) if sources else ("", False, False)
    return [Block(name, 0, rows, transposed=transposed)] if sources else []


def _heads(sources: list[str], mixer: AttentionConfig) -> list[Block]:
    """The blocks of stacked queries, keys and values."""
    K, D, copies = mixer.num_kv_heads, mixer.head_dim, mixer.kv_copies
    stacked = mixer.stacked
    sources = sources if len(sources) == 1 else sources[: len(stacked)]
    sizes = [heads * (K if part == 0 else K // copies) * D for part, heads in enumerate(stacked)]
    found = []
    for k in range(K):
        for part, heads in enumerate(stacked):
            if len(sources) == 1:  # head by head; such families have no shared key heads
                name, at = sources[0], (k * sum(stacked) + sum(stacked[:part])) * D
            else:
                name = sources[part]
                before = sum(size for other, size in zip(sources[:part], sizes) if other == name)
                at = before + (k if part == 0 else k // copies) * heads * D
            found += _rotated(name, at, heads, mixer, part < 2, gated=part == 0 and mixer.output_gate)
    return found


def _key_heads(sources: list[str], sizes: tuple[int, ...], key_heads: int) -> list[Block]:
    """The blocks of parts of ``sizes`` rows, which are stacked for each key head."""
    found = []
    for k in range(key_heads):
        for part, (name, size) in enumerate(zip(sources, sizes)):
            before = sum(size for other, size in zip(sources[:part], sizes) if other == name)
            found.append(Block(name, key_heads * before + k * size, key_heads * before + (k + 1) * size))
    return found


def _rotated(
    name: str, at: int, heads: int, mixer: AttentionConfig, rotated: bool, *, gated: bool = False
) -> list[Block]:
    """The blocks of ``heads`` heads from row ``at`` on, in the order of ``rope.rotate``.

    There, dimension i is paired with dimension i + D / 2. In a tensor, the rotated dimensions come
    first, and are paired half by half or, where interleaved, neighbour by neighbour. If ``gated``, each
    second head is an output gate, which is not rotated.
    """
    D, size = mixer.head_dim, mixer.rope.rotated_size(mixer.head_dim)
    name, transposed, interleaved = _read_marks(name)
    partly = 0 < size < D and mixer.rope.rope_type != "proportional"
    if not rotated or not (partly or interleaved and size):
        return [Block(name, at, at + heads * D, transposed=transposed)]
    rest = (D - size) // 2
    pairs = [(0, size - 1, 2), (1, size, 2)] if interleaved else [(0, size // 2, 1), (size // 2, size, 1)]
    places = [pairs[0], (size, size + rest, 1), pairs[1], (size + rest, D, 1)]
    return [
        Block(name, at + head * D + start, at + head * D + stop, step, transposed)
        for head in range(heads)
        for start, stop, step in ([(0, D, 1)] if gated and head % 2 else places)
        if stop > start
    ]


def _latent(parameter: str, sources: list[str], rows: int, mixer: LatentAttentionConfig) -> list[Block]:
    """The blocks of a parameter of latent attention.

    ``down`` has two sources, of which queries that are not compressed have the second only. ``query`` has
    two sources, of which such queries have the first, and compressed queries the second. ``up_key`` and
    ``up_value`` are parts of one tensor, in which each head's keys come before its values. There the last
    block has no rows. It ends where the tensor ends.
    """
    Dn, Dr, Dv = mixer.key_dim, mixer.rope_dim, mixer.value_dim
    if parameter in ("down", "down_bias"):
        queries = [Block(sources[0], 0, mixer.query_rank)] if mixer.query_rank else []
        return queries + _rotated_end(sources[1], 0, mixer.rank, Dr)
    if parameter == "query":
        source = sources[1 if mixer.query_rank else 0]
        return [block for head in range(mixer.num_heads) for block in _rotated_end(source, head * (Dn + Dr), Dn, Dr)]
    if parameter in ("up_key", "up_value"):
        first, size = (0, Dn) if parameter == "up_key" else (Dn, Dv)
        starts = [head * (Dn + Dv) + first for head in range(mixer.num_heads)]
        end = mixer.num_heads * (Dn + Dv)
        return [*(Block(sources[0], at, at + size) for at in starts), Block(sources[0], end, end)]
    return [Block(sources[0], 0, rows)]


def _rotated_end(name: str, at: int, before: int, rotated: int) -> list[Block]:
    """The blocks of ``before`` rows from ``at`` on, and of ``rotated`` rows after them, as ``rope.rotate`` has them."""
    name, _, interleaved = _read_marks(name)
    first, end = at + before, at + before + rotated
    if not interleaved:
        return [Block(name, at, end)]
    return [Block(name, at, first), Block(name, first, end - 1, 2), Block(name, first + 1, end, 2)]


def _gates(sources: list[str], mlp: GatedMlpConfig) -> list[Block]:
    """The blocks of the parts of a gate and an up projection."""
    F, size, found = mlp.intermediate_size, mlp.intermediate_size // mlp.parts, []
    for part in range(mlp.parts):
        for i, source in enumerate(sources):
            name, transposed, _ = _read_marks(source)
            at = part * size + (F if i and sources[0] == source else 0)
            found.append(Block(name, at, at + size, transposed=transposed))
    return found


def _read_marks(name: str) -> tuple[str, bool, bool]:
    """The name without its marks, and whether it is marked as transposed and as interleaved."""
    bare = name.removesuffix(INTERLEAVED)
    return bare.removesuffix(TRANSPOSED), bare.endswith(TRANSPOSED), name.endswith(INTERLEAVED)
