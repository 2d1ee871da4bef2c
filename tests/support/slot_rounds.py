"""Rounds of an engine's slots, compiled for a device that need not exist."""

from functools import partial

import jax
import jax.numpy as jnp

from specjax import Drafter, ModelConfig, make_mesh
from specjax.core.blocks import without_arrays
from specjax.core.cache import is_cache
from specjax.engine import sizes, slots
from specjax.engine.pools import on_pools
from specjax.rules.acceptance import resolve
from specjax.tools.evaluate.products import stored_bytes
from specjax.tools.plan import hlo, traffic
from specjax.tools.plan.abstract_arguments import abstract
from specjax.tools.plan.devices import compile_only, parse_device
from specjax.tools.plan.program import products_of
from specjax.tools.plan.program_figures import caches_of

MOST_ROUNDS = 32
MOVES = ("copy", "transpose", "gather", "concatenate")


class SlotRounds:
    """The program of ``Programs.launch`` for all slots, with keys and values of bfloat16.

    Pools have block 0 and the positions of fixed slots.

    Attributes:
      program: the compiled program.
      bytes: what a round moves when all slots are full, see ``traffic.Program``. A loop over blocks runs as often as a
        slot has blocks, and a kernel reads the whole pool.
      least: the bytes of weights, keys and values that the products of a round with fixed slots read.
      held: the bytes of the arrays of keys and values, which the program must update in place.
    """

    def __init__(self, device: str, models: tuple[ModelConfig, ...], drafter: Drafter, rows: int, capacity: int,
                 in_blocks: bool):  # fmt: skip
        # 1. The arguments, on one device without a mesh, as an engine with blocks has them.
        chip = compile_only(*parse_device(device))[0]
        target, *drafts = models
        shapes = abstract(
            target, drafter, tuple(drafts), make_mesh(devices=[chip]), rows, capacity, jnp.dtype("bfloat16")
        )
        whole = jax.sharding.SingleDeviceSharding(chip)
        of = lambda shape, dtype: jax.ShapeDtypeStruct(shape, dtype, sharding=whole)
        place = partial(jax.tree.map, lambda x: of(x.shape, x.dtype))
        model, parameters, state = place((shapes.model, shapes.parameters, shapes.state))
        caches, held = caches_of(state), caches_of(state)
        count, size = capacity // sizes._BLOCK, sizes._BLOCK
        if in_blocks:
            held = [of((rows * count + 1, leaf.shape[1], size, leaf.shape[3]), leaf.dtype) for leaf in caches]
            state = jax.tree.map(lambda x: without_arrays(x) if is_cache(x) else x, state, is_leaf=is_cache)
        lent = (held, of((rows, count), jnp.int32)) if in_blocks else ([], of((rows, 0), jnp.int32))

        # 2. The program, and its figures.
        advance = partial(slots.advance, drafter=drafter, rule=resolve("auto", drafter.drawn), most_rounds=MOST_ROUNDS)
        run = jax.jit(partial(on_pools, function=advance, at=2), donate_argnums=(2, 4))
        self.program = run.lower(model, parameters, state, of((), jnp.int32), *lent).compile()
        self.bytes = traffic.Program(self.program.as_text(), count if in_blocks else 1).bytes_moved()
        self.least = products_of(shapes).bytes
        self.held = sum(map(stored_bytes, held))
        self._sizes = {leaf.size for leaf in (*caches, *held)} | {leaf.size // rows for leaf in caches}

    def moves(self, everywhere: bool = True) -> list[hlo.Instruction]:
        """What moves a pool, or the keys or values of all slots or of one; ``everywhere`` looks outside of rounds too."""
        return hlo.moved(self.program.as_text(), self._sizes, MOVES, everywhere)
