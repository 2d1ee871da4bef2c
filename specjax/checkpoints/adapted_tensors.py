"""Tensors of a checkpoint that an adapter changes, computed when they are indexed."""

from typing import Any, NamedTuple

import numpy as np


class Adapted(NamedTuple):
    """A tensor W + scale * B A. Indexing it reads slices of W, B and A.

    Attributes:
      base: W [out, in], or a table of embeddings [V, E].
      a, b: A [r, in] and B [out, r]. For a table, whose update is the transpose of B A, they are
        [r, V] and [E, r].
      scale: the factor of the update.
      is_table: whether W is a table of embeddings.
    """

    base: Any
    a: Any
    b: Any
    scale: float
    is_table: bool

    def get_shape(self) -> list[int]:
        return self.base.get_shape()

    def get_dtype(self) -> str:
        return self.base.get_dtype()

    def __getitem__(self, index: tuple) -> np.ndarray:
        """The slice of rows and columns, at least float32."""
        rows, columns = index
        if self.is_table:
            change = _floats(self.a[(slice(None), rows)]).T @ _floats(self.b[(columns, slice(None))]).T
        else:
            change = _floats(self.b[(rows, slice(None))]) @ _floats(self.a[(slice(None), columns)])
        return _floats(self.base[index]) + self.scale * change


class NewRows(NamedTuple):
    """A table W [V, E] in which the rows of some tokens are replaced. Indexing it reads slices.

    Attributes:
      base: W.
      ids: the n tokens.
      rows: their rows [n, E].
    """

    base: Any
    ids: list[int]
    rows: Any

    def get_shape(self) -> list[int]:
        return self.base.get_shape()

    def get_dtype(self) -> str:
        return self.base.get_dtype()

    def __getitem__(self, index) -> np.ndarray:
        """The slice of rows and columns, at least float32."""
        rows, *columns = index if isinstance(index, tuple) else (index,)
        values = _floats(self.base[index]).copy()
        first, last, _ = rows.indices(self.base.get_shape()[0])
        for place, id in enumerate(self.ids):
            if first <= id < last:
                values[id - first] = self.rows[(slice(place, place + 1), *columns)][0]
        return values


def _floats(values: np.ndarray) -> np.ndarray:
    return values.astype(np.result_type(values.dtype, np.float32))
