"""The least work of a round, by hand arithmetic."""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from support.models import TINY

from specjax.drafters import DraftModel, Plain, QuantizedSelf
from specjax.loop.chooser import at_largest_shape
from specjax.parallel import make_mesh
from specjax.tools.evaluate.products import Work, of_round
from specjax.tools.plan.abstract_arguments import abstract
from specjax.tools.plan.program import products_of
from specjax.tools.plan.settings import make_planned_drafter

ON_CPU = jax.sharding.SingleDeviceSharding(jax.devices()[0])
shape = partial(jax.ShapeDtypeStruct, dtype=jnp.float32, sharding=ON_CPU)


def work_of(round_) -> Work:
    """The work of a loop of ``round_(weights, x)``; float32 weights [6, 4] and [4, 4] and x [4]."""

    def run(weights, x):
        return lax.while_loop(lambda x: x.sum() < 1, partial(round_, weights), x)

    weights, x = (shape((6, 4)), shape((4, 4))), shape((4,))
    return of_round(jax.jit(run).trace(weights, x), weights, x, 1)


def test_a_product_reads_its_weights_and_a_lookup_does_not():
    def look_up_and_multiply(weights, x):
        table, square = weights
        return x + square.astype(jnp.bfloat16).astype(jnp.float32) @ (2 * x) + table[2]

    assert work_of(look_up_and_multiply) == Work(16 * 4, 2 * 16)


def test_loops_conditionals_and_parts():
    """A counted loop of 5, a loop of 3 that tests a limit, a branch, and a product with a part of an array."""

    def turn(weights, x):
        table, square = weights
        x = lax.fori_loop(0, 5, lambda i, x: square @ x, 2 * x)
        x = lax.while_loop(lambda c: c[0] < 4, lambda c: (c[0] + 1, square @ c[1]), (jnp.int32(1), x))[1]
        x = lax.cond(x[0] > 0, lambda x: x, lambda x: square @ x, x)
        return x + (table[:3] @ x).sum()

    found = work_of(turn)
    assert found.bytes == (5 + 3 + 1) * 64 + 3 * 4 * 4
    assert found.operations == (5 + 3 + 1) * 32 + 2 * 3 * 4


def test_a_draft_is_read_once_for_each_pass():
    """Weights of matrices, both caches, and four passes of the draft, by the sizes of ``TINY``."""
    draft = TINY.replace(num_layers=1)
    mesh = make_mesh(data=1)
    sizes = dict(batch=1, capacity=256, dtype=jnp.dtype("bfloat16"))
    plain = products_of(abstract(TINY, Plain(), (), mesh, **sizes))
    drafted = products_of(abstract(TINY, DraftModel(4), (draft,), mesh, **sizes))
    E, F, V, D = TINY.hidden_size, TINY.intermediate_size, TINY.vocab_size, TINY.head_dim
    layer = E * D * (2 * TINY.num_heads + 2 * TINY.num_kv_heads) + 3 * E * F
    cache = 2 * TINY.num_kv_heads * 256 * D
    assert plain.bytes == 2 * (2 * (layer + cache) + V * E)
    assert drafted.bytes - plain.bytes == 4 * 2 * (layer + cache + V * E)
    seen = cache * 257 // 256  # the node's own key and value too
    queries = TINY.num_heads // TINY.num_kv_heads
    assert plain.operations == 2 * (2 * (layer + queries * seen) + V * E)


def test_the_shapes_of_a_method_that_chooses_add_up_unless_one_is_taken():
    drafter, sizes = make_planned_drafter("auto", TINY, {}), dict(batch=1, capacity=64, dtype=jnp.bfloat16)
    of = lambda drafter: products_of(abstract(TINY, drafter, (TINY,), make_mesh(), **sizes)).bytes
    alone = [of(drafter.at_shape(shape)) for shape in drafter.shapes]
    assert of(at_largest_shape(drafter)) == alone[-1]
    assert of(drafter) > 0.8 * sum(alone)


def test_quantised_weights_count_by_their_bits():
    """Half a byte for a weight of int4, one for the output matrix.

    The copy drafts four times and reads the same cache. It has an offset of four bytes for 32 weights.
    """
    wide = TINY.replace(hidden_size=128, intermediate_size=256, head_dim=32)
    sizes = dict(batch=1, capacity=256, dtype=jnp.dtype("bfloat16"))
    E, F, V, D = wide.hidden_size, wide.intermediate_size, wide.vocab_size, wide.head_dim
    layers = wide.num_layers * (E * D * (2 * wide.num_heads + 2 * wide.num_kv_heads) + 3 * E * F)
    cache = wide.num_layers * 2 * wide.num_kv_heads * 256 * D * 2
    read = {None: 2 * layers + 2 * V * E, "int8": layers + V * E, "fp8": layers + V * E, "int4": layers / 2 + V * E}
    for scheme, size in read.items():
        work = products_of(abstract(wide, Plain(), (), make_mesh(), quantize=scheme, **sizes))
        assert work.bytes == size + cache
    drafted = products_of(abstract(wide, QuantizedSelf("int4"), (), make_mesh(), **sizes))
    assert drafted.bytes == read[None] + cache + 4 * (read["int4"] + 4 * layers / 32 + cache)


def test_devices_share_the_work():
    """Eight devices: half the rows, a quarter of the weights and of the cache's heads each."""
    wide = TINY.replace(num_kv_heads=4, vocab_size=64)
    sizes = dict(batch=2, capacity=256, dtype=jnp.dtype("bfloat16"))
    alone, split = (
        products_of(abstract(wide, Plain(), (), make_mesh(**axes), **sizes)) for axes in ({}, dict(data=2, model=4))
    )
    cache = 2 * 2 * 2 * wide.num_kv_heads * 256 * wide.head_dim * 2
    assert split.bytes == (alone.bytes - cache) / 4 + cache / 8
    assert split.operations < alone.operations / 7
