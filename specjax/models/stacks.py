"""The order of rows in a parameter that stacks several matrices.

Rows that are computed with one another lie together, so that they stay on one device when the
parameter is split. Therefore a stack consists of groups, such as the key heads of attention. Each
group has some heads of each part, such as queries, keys and values.

A checkpoint has another order. There each part is a matrix in which the heads of all groups follow
one another, or one matrix has the parts group by group.
"""

from typing import NamedTuple


class HeadRows(NamedTuple):
    """The rows of one head.

    Attributes:
      size: the number of rows.
      order: the ranges (start, stop) of the head's rows, in the order of the stack; empty for rows
        in their own order.
      rotated: the first of the rows with rotary positions, and their number. Their halves are
        paired, and each half lies in ranges of its own.
    """

    size: int
    order: tuple[tuple[int, int], ...] = ()
    rotated: tuple[int, int] = (0, 0)


class Part(NamedTuple):
    """One of the matrices of a stack.

    Attributes:
      head: the rows of each head.
      heads: the number of heads in each group.
      copies: the number of successive groups that have equal heads. The matrix has them once.
      used: whether the stack has the rows. A matrix may also hold rows of another stack.
    """

    head: HeadRows
    heads: int = 1
    copies: int = 1
    used: bool = True

    @property
    def size(self) -> int:
        """The number of rows in each group."""
        return self.heads * self.head.size


class Stack(NamedTuple):
    """The rows of a parameter: ``groups`` times the heads of all parts."""

    groups: int
    parts: tuple[Part, ...]


def rows_of_sizes(groups: int, *sizes: int) -> Stack:
    """The stack whose parts have ``sizes`` rows in each group."""
    return Stack(groups, tuple(Part(HeadRows(size)) for size in sizes))
