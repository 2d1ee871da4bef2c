"""The least work of a round: its products, and the weights and caches that they read.

Both follow from the traced program, before any compiler sees it. So they depend on no platform.
"""

import math
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.extend import core

from ...models.offload import FETCH

_EXPECTED = re.compile(r"about_([\d.]+)_times")
"""The names by ``models.feed_forwards.expert_products.EXPECTED_TIMES``."""
_VIEWS = {
    "reshape", "transpose", "convert_element_type", "bitcast_convert_type", "slice", "dynamic_slice", "squeeze",
    "broadcast_in_dim", "copy", "sharding_constraint", "optimization_barrier",
}  # fmt: skip
"""Operations whose result is a part or another form of their first operand."""


class Work(NamedTuple):
    """The products of a program on one device.

    Attributes:
      bytes: the bytes of stored arrays that the products read. A product that runs several times
        reads its arrays as often.
      operations: multiplications and additions.
    """

    bytes: float = 0.0
    operations: float = 0.0

    def plus(self, other: "Work", times: float = 1) -> "Work":
        return Work(self.bytes + times * other.bytes, self.operations + times * other.operations)


class Stored(NamedTuple):
    """A stored array: bytes on one device, and the share of a product's operations there.

    ``bytes`` counts for each element of the whole array.
    """

    bytes: float
    share: float


def of_round(traced: jax.stages.Traced, weights, state, rows: int) -> Work:
    """The work of one iteration of the largest loop of a traced program, such as ``decode.run``.

    The weights of the target count once. The weights of a draft count once for each of its passes.
    Caches count in full whenever a product reads them. Tables of embeddings do not count, unless
    they are also the output matrix. A loop counts as often as it runs, and once if that depends on
    the data. Of the branches of a conditional, the branch that reads most counts, and among equals
    the one with fewer operations.

    Args:
      traced: the result of ``jax.jit(...).trace``.
      weights, state: the first and the other arguments that it was traced with, shapes with
        shardings.
      rows: the number of devices over which the rows of the batch are split.
    """
    jaxpr = traced.jaxpr.jaxpr
    known = [_stored(leaf, rows) for leaf in jax.tree.leaves(weights)]
    known += [_stored(leaf, 1) for leaf in jax.tree.leaves(state)]
    stored = dict(zip(jaxpr.invars, known))
    return max(_of_loops(jaxpr, stored, 1 / rows), key=lambda work: work.bytes, default=Work())


def stored_bytes(x) -> int:
    """Bytes that one device stores of an array; ``x`` is a shape with a sharding."""
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        return 0
    return math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize


def expected_times(text: str) -> float:
    """The expected number of runs of a loop, from a name in its scope; 0 without such a name.

    In the text of a whole program, it is the largest of all such numbers.
    """
    return max(map(float, _EXPECTED.findall(text)), default=0.0)


def _stored(x, rows: int) -> Stored:
    """The record of an array.

    ``rows``: the devices that share its products, because each has rows of the other operand.
    """
    share = stored_bytes(x) / max(x.size, 1)
    return Stored(share, share / max(x.dtype.itemsize, 1) / rows)


def _of_loops(jaxpr, stored: Mapping, share: float) -> Iterator[Work]:
    """The work of the body of each outermost loop."""
    for eqn in jaxpr.eqns:
        for inner, operands in _called_programs(eqn):
            known = _stored_inputs(inner, operands, stored)
            if eqn.primitive.name == "while":
                yield _work(inner, known, share)
            else:
                yield from _of_loops(inner, known, share)


def _work(jaxpr, stored: Mapping, share: float) -> Work:
    """The work of a program.

    Args:
      stored: the variables that are stored arrays.
      share: the share of other products' operations that one device runs.
    """
    stored = dict(stored)
    total = Work()

    def find(atom) -> Stored | None:
        return None if isinstance(atom, core.Literal) else stored.get(atom)

    for eqn in jaxpr.eqns:
        name = eqn.primitive.name
        if eqn.params.get("name") == FETCH and (seen := find(eqn.invars[0])):
            stored[eqn.outvars[0]] = seen  # the copy of a weight in the host's memory
        elif name in _VIEWS and (seen := find(eqn.invars[0])):
            parts = eqn.outvars[0].aval.size / eqn.invars[0].aval.size if name == "bitcast_convert_type" else 1
            stored[eqn.outvars[0]] = seen._replace(bytes=seen.bytes / parts)  # a byte holds several small numbers
        elif name == "dot_general":
            operands = [(array, atom.aval.size) for atom in eqn.invars if (array := find(atom))]
            shares = [array.share for array, _ in operands] or [share]
            read = sum(array.bytes * size for array, size in operands)
            total = total.plus(Work(read, min(shares) * _operations(eqn)))
        else:
            works = [
                _work(inner, _stored_inputs(inner, inputs, stored), share) for inner, inputs in _called_programs(eqn)
            ]
            if name == "cond":
                works = [max(works, key=lambda work: (work.bytes, -work.operations))]
            for work in works:
                total = total.plus(work, _trips(eqn))
    return total


def _trips(eqn) -> float:
    """The number of runs of a loop; 1 if its end depends on the data, and without a loop.

    The scope of a loop over experts has its expected number of runs.
    """
    if eqn.primitive.name in ("scan", "while") and (expected := expected_times(str(eqn.source_info.name_stack))):
        return expected
    params = eqn.params
    if eqn.primitive.name == "scan":
        return params["length"]
    if eqn.primitive.name != "while" or len(params["cond_jaxpr"].eqns) != 1:
        return 1
    jaxpr = params["cond_jaxpr"].jaxpr
    (test,) = params["cond_jaxpr"].eqns
    if test.primitive.name != "lt" or not isinstance(test.invars[1], core.Literal) or params["cond_nconsts"]:
        return 1
    carry = eqn.invars[params["body_nconsts"] :]
    first = carry[jaxpr.invars.index(test.invars[0])]
    return int(test.invars[1].val) - int(first.val) if isinstance(first, core.Literal) else 1


def _called_programs(eqn) -> list[tuple]:
    """The programs that an equation runs, each with its inputs."""
    inputs = list(eqn.invars)
    params = eqn.params
    if eqn.primitive.name == "cond":
        return [(branch.jaxpr, inputs[1:]) for branch in params["branches"]]
    if eqn.primitive.name == "while":
        return [(params["body_jaxpr"].jaxpr, inputs[params["cond_nconsts"] :])]
    inner = next((params[name] for name in ("jaxpr", "call_jaxpr") if name in params), None)
    return [] if inner is None else [(getattr(inner, "jaxpr", inner), inputs)]


def _stored_inputs(inner, inputs: list, stored: Mapping) -> dict:
    """The stored arrays, or a device's parts of them, by their names in a called program."""
    pairs = [(var, atom) for var, atom in zip(inner.invars, inputs) if not isinstance(atom, core.Literal)]
    parts = {var: atom.aval.size / max(var.aval.size, 1) for var, atom in pairs}
    return {
        var: Stored(stored[atom].bytes * parts[var], stored[atom].share * parts[var])
        for var, atom in pairs
        if atom in stored
    }


def _operations(eqn) -> float:
    (contracted, _), _ = eqn.params["dimension_numbers"]
    left = eqn.invars[0].aval
    (out,) = eqn.outvars
    return 2.0 * out.aval.size * math.prod(left.shape[axis] for axis in contracted)
