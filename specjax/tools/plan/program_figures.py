"""The figures of a compiled loop: memory, traffic, operations and collectives."""

import dataclasses
import math
from collections.abc import Mapping

import jax

from ...core.state import DecodeState
from ...errors import RequestError
from ...models.offload import HOST
from ..evaluate import products
from . import hlo, launches, traffic
from .abstract_arguments import Abstract


@dataclasses.dataclass(frozen=True)
class Figures:
    """The figures of one compiled method, of one device.

    Attributes:
      weights, draft, cache, temporaries: bytes of memory. ``cache`` has those of target and draft.
      host: bytes of the layers that stay in the host's memory.
      streamed: bytes of weights that a round copies from there.
      moved: bytes that a round moves, see ``traffic.Program``.
      least: bytes of weights and caches that its products read, see ``evaluate.products.of_round``.
      operations: operations of its products.
      launches: kernels that it launches; 0 on a TPU, where the loop is one launch.
      collectives: the number of runs of each kind and size of collective.
      copies: cache-sized copies in the loop.
      experts: the experts that a layer is expected to read; 0 without experts.
    """

    weights: float
    draft: float
    cache: float
    temporaries: float
    moved: float
    least: float
    operations: float
    launches: float
    collectives: Mapping[tuple[str, int], float]
    copies: int
    experts: float = 0.0
    host: float = 0.0
    streamed: float = 0.0


def figures_of(program: Abstract, loop: jax.stages.Compiled, work: products.Work) -> Figures:
    """The figures of a compiled loop; ``temporaries`` are those of the loop."""
    text = loop.as_text() or ""
    caches = caches_of(program.state)
    moved = traffic.Program(text)
    on_host = [x for x in jax.tree.leaves(program.model) if x.sharding.memory_kind == HOST]

    def stored(tree) -> float:
        return float(sum(map(products.stored_bytes, jax.tree.leaves(tree))))

    return Figures(
        weights=stored(program.model) - stored(on_host),
        host=stored(on_host),
        streamed=moved.bytes_from_host(),
        draft=stored(program.draft),
        cache=stored(caches),
        temporaries=temporaries(loop),
        moved=moved.bytes_moved(),
        least=work.bytes,
        operations=work.operations,
        launches=launches.in_round(text),
        collectives={(one.kind, one.bytes): one.count for one in moved.collectives()},
        experts=products.expected_times(text),
        copies=len(hlo.moved(text, {math.prod(leaf.sharding.shard_shape(leaf.shape)) for leaf in caches})),
    )


def temporaries(compiled: jax.stages.Compiled) -> float:
    """The bytes that a program needs beside its arguments and results.

    Raises RequestError for a compiler that reports none.
    """
    memory = compiled.memory_analysis()
    if memory is None:
        raise RequestError("this compiler tells no memory figures; use another device")
    return memory.temp_size_in_bytes


def caches_of(state: DecodeState) -> list:
    """The arrays of a state that are caches of keys or values, [B, K, T, D]."""
    return [leaf for leaf in jax.tree.leaves(state) if leaf.ndim == 4]
