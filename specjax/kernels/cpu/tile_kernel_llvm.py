"""What the code of a product with weights in tiles shares: its form, arrays, and vectors."""

from typing import Any, NamedTuple

from llvmlite import ir

from .llvm import I8, I32, declare
from .tile_order import QUAD, TILE

CHUNK = QUAD * TILE
"""Bytes. A chunk is a quad of each output for 8 bits, and two quads for 4 bits."""

LANES = {"avx512_vnni": 16, "avx_vnni": 8, "avx2": 8, "asimddp": 4, "plain": 16}
"""The lanes of a vector, by the kind of instructions."""


class Form(NamedTuple):
    """The weights of a product, and how rows are multiplied with them.

    Attributes:
      kind: the kind of instructions, one of ``LANES``.
      bits: 4 or 8.
      group: the inputs that share a scale, a multiple of 8.
      offsets: Whether a group has an offset besides its scale.
      stacked: Whether the weight is one of several, whose number is an operand.
      words: Whether the rows are int16, as ``rounded_rows_llvm`` orders them, else int8.
    """

    kind: str
    bits: int
    group: int
    offsets: bool
    stacked: bool
    words: bool

    @property
    def lanes(self) -> int:
        return LANES[self.kind]

    @property
    def excess(self) -> int:
        """This number is added to the weights' numbers, so that they are not negative.

        The instructions of Arm also multiply negative bytes.
        """
        if self.bits == 8:
            return 0 if self.kind == "asimddp" else 128
        return 0 if self.offsets else 8

    @property
    def chunks(self) -> int:
        """The chunks of a group."""
        return self.group * self.bits * TILE // 8 // CHUNK


class Arrays(NamedTuple):
    """Pointers to the arrays of a product, in the order of the operands."""

    rows: Any
    weights: Any
    scales: Any
    row_scales: Any
    row_sums: Any
    offsets: Any = None


class Kernel(NamedTuple):
    """A product whose code is built. ``groups`` is the number of groups of an output."""

    build: ir.IRBuilder
    arrays: Arrays
    form: Form
    groups: Any

    def vector(self, number) -> ir.VectorType:
        return ir.VectorType(number, self.form.lanes)

    def bytes(self) -> ir.VectorType:
        return ir.VectorType(I8, 4 * self.form.lanes)

    def same(self, number, value: int) -> ir.Constant:
        """A vector of one whole number."""
        size = self.form.lanes * 32 // number.width
        return ir.Constant(ir.VectorType(number, size), [number(value)] * size)

    def spread(self, value):
        """A vector of one number."""
        vector = self.vector(value.type)
        first = self.build.insert_element(vector(ir.Undefined), value, I32(0))
        mask = ir.Constant(self.vector(I32), [I32(0)] * self.form.lanes)
        return self.build.shuffle_vector(first, vector(ir.Undefined), mask)

    def load(self, array, index, number, typ=None):
        at = self.build.gep(array, [index], source_etype=number)
        return self.build.load(at, typ=typ or number, align=1)

    def call(self, name: str, result, *values):
        function = declare(self.build.module, name, result, *[value.type for value in values])
        return self.build.call(function, values)

    def multiply_add(self, a, b, c):
        return self.call(f"llvm.fma.v{self.form.lanes}f32", a.type, a, b, c)
