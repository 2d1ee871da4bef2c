"""The blocks of rows of a checkpoint's tensors that make up a parameter.

A parameter is a stack of blocks, and a block is some rows of a tensor. One table of names serves
reading, writing and checking. Each device reads only the rows that it holds. The table has no
shapes: the model knows them.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ..models.config import ModelConfig
from ..models.stacks import Stack

_NUMBER = {letter: re.compile(rf"(?<![A-Za-z]){letter}(?![A-Za-z])") for letter in "NM"}


class Block(NamedTuple):
    """Rows of the source tensor ``name``: every ``step``-th from ``start`` to before ``stop``.

    ``transposed`` says that the rows are columns of the tensor, and ``in_one_row`` that they are
    numbers of a tensor [1, rows]. The last row is ``stop - 1``.
    """

    name: str
    start: int
    stop: int
    step: int = 1
    transposed: bool = False
    in_one_row: bool = False

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
        if self.in_one_row:
            return (1, self.stop)
        return (*rest, self.stop) if self.transposed else (self.stop, *rest)

    def read(self, tensor, rest: tuple[slice, ...] = ()) -> np.ndarray:
        """The rows of a tensor that is read by slices, or of their part ``rest``."""
        rows = slice(self.start, self.stop)
        if self.in_one_row:
            return tensor[:1, rows][0]
        return (tensor[(*rest, rows)].T if self.transposed else tensor[(rows, *rest)])[:: self.step]

    def write(self, tensor: np.ndarray, values: np.ndarray) -> None:
        """Sets the rows in a tensor."""
        rows = tensor[0] if self.in_one_row else tensor.T if self.transposed else tensor
        rows[self.start : self.stop : self.step] = values


Transform = Callable[[Block, int, int], Block]
"""Finds the rows of a block in a tensor of another form.

Its arguments are the block, and the first row and the number of the rotated dimensions of the
block's head.
"""


class Tensor(NamedTuple):
    """A tensor in a table of names that has another form than the parameter.

    A tensor of the same form stands in the table by its name alone.
    """

    name: str
    transform: Transform


Names = Mapping[str, Sequence[str | Tensor]]
"""The tensors of each parameter, by its path; see ``source_tensors``."""


def transpose(block: Block, first: int, size: int) -> Block:
    """The block in a tensor [in, out]."""
    return block._replace(transposed=True)


def one_row(block: Block, first: int, size: int) -> Block:
    """The block in a tensor [1, rows]."""
    return block._replace(in_one_row=True)


def interleave(block: Block, first: int, size: int) -> Block:
    """The block in a tensor that pairs neighbouring dimensions for rotary positions."""
    if not first <= block.start < first + size:
        return block
    second_half, place = divmod(block.start - first, size // 2)
    start = first + 2 * place + second_half
    return block._replace(start=start, stop=start + 2 * block.size - 1, step=2)


def name_of(tensor: str | Tensor) -> str:
    """The name of an entry of a table."""
    return tensor if isinstance(tensor, str) else tensor.name


def rename(tensors: Sequence[str | Tensor], change: Callable[[str], str]) -> list[str | Tensor]:
    """The entries of a table with other names."""
    return [change(x) if isinstance(x, str) else x._replace(name=change(x.name)) for x in tensors]


def source_tensors(path: str, names: Names) -> list[Tensor]:
    """The tensors of the parameter at ``path``.

    Args:
      path: the path of a parameter, such as "layers.3.mixer.qkv".
      names: the tensors of each path. A path stands there as it is, or with N for each of its
        numbers. In the names of tensors, N stands for the path's first number and M for its second.
    """
    numbers = re.findall(r"\d+", path)

    def insert_numbers(name: str) -> str:
        for letter, number in zip("NM", numbers):
            name = _NUMBER[letter].sub(number, name)
        return name

    tensors = rename(names[path if path in names else re.sub(r"\d+", "N", path)], insert_numbers)
    return [Tensor(x, lambda block, *_: block) if isinstance(x, str) else x for x in tensors]


def blocks(path: str, rows: int, names: Names, config: ModelConfig | None) -> list[Block]:
    """The blocks of rows that make up the parameter at ``path``, in order.

    Parameters of a sub-layer may stack several matrices; its configuration declares their order,
    see ``MixerConfig.stacks``. Tensors that the table gives one name follow one another in one
    tensor. A single tensor for several matrices has them group by group.

    Args:
      rows: the number of rows of the parameter.
      names: see ``source_tensors``.
      config: the configuration of the model, None for a module without layers.
    """
    tensors, stack = source_tensors(path, names), _stack_of(path, config)
    if not tensors:
        return []
    if stack is None:
        name, transform = tensors[0]
        return [transform(Block(name, 0, rows), 0, 0)]
    return _join(_stacked(tensors, stack))


def _stack_of(path: str, config: ModelConfig | None) -> Stack | None:
    """The order of the parameter's rows; None for a parameter that is one matrix."""
    place = re.search(r"layers\.(\d+)\.(mixer|mlp)\.([\w.]+)$", path)
    config = config.encoder if config and path.startswith("encoder.") else config
    if place is None or config is None:
        return None
    layer = config.layer(int(place[1]))
    return (layer.mixer if place[2] == "mixer" else layer.mlp).stacks.get(place[3])


def _stacked(tensors: list[Tensor], stack: Stack) -> Iterator[Block]:
    """Yields the blocks of a stack, range by range."""
    by_group = len(tensors) == 1 and len(stack.parts) > 1
    copies = max(part.copies for part in stack.parts)  # the groups of the stack for each group of the tensor
    sizes = [part.size * copies // part.copies for part in stack.parts]
    parts = list(zip(tensors * len(sizes) if by_group else tensors, stack.parts))
    for group in range(stack.groups):
        for number, (tensor, part) in enumerate(parts):
            # 1. The part's rows of this group in its tensor.
            if by_group:
                before = group // copies * sum(sizes) + sum(sizes[:number])
                first = before + group % copies // part.copies * part.size
            else:
                earlier = [other for same, other in parts[:number] if same.name == tensor.name]
                before = sum(stack.groups // other.copies * other.size for other in earlier)
                first = before + group // part.copies * part.size
            end = first + part.size
            if not part.used:
                yield tensor.transform(Block(tensor.name, end, end), 0, 0)  # no rows, but the tensor ends there
                continue
            # 2. The ranges of each head, in the order of the stack.
            head = part.head
            for at in range(first, end, head.size or 1):
                for start, stop in head.order or ((0, head.size),):
                    if start < stop:
                        block = Block(tensor.name, at + start, at + stop)
                        yield tensor.transform(block, at + head.rotated[0], head.rotated[1])


def _join(pieces: Iterator[Block]) -> list[Block]:
    """The blocks, in which neighbouring blocks of a tensor that follow one another are one."""
    joined: list[Block] = []
    for block in pieces:
        last = joined[-1] if joined else None
        if last is not None and (last.name, last.stop, last.step, block.step) == (block.name, block.start, 1, 1):
            joined[-1] = last._replace(stop=block.stop)
        else:
            joined.append(block)
    return joined
