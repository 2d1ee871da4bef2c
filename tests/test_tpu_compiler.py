"""The loops of drafters in the hands of the TPU's own compiler, for 1, 4 and 8 chips, without a chip (second tier)."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from support.loops import ONE_LAYER, SHARES, STRUCTURES, make_drafters
from support.models import TINY

from specjax import Drafter, make_mesh
from specjax.core.settings import own_settings
from specjax.drafters import DraftModel, PartialCache, Plain
from specjax.engine import row_subset
from specjax.loop.drafter import Models
from specjax.parallel import use_mesh
from specjax.rules.acceptance import resolve
from specjax.tools.evaluate.products import stored_bytes
from specjax.tools.plan import hlo, traffic
from specjax.tools.plan.abstract_arguments import abstract
from specjax.tools.plan.devices import compile_only, parse_device
from specjax.tools.plan.program import compile_loop
from specjax.tools.plan.program_figures import Figures, caches_of, figures_of

pytestmark = pytest.mark.slow

WIDE = TINY.replace(vocab_size=4096, hidden_size=512, intermediate_size=1408, num_heads=4, num_kv_heads=2, head_dim=128)
"""Realistic widths, which a TPU lays out as it lays out large models. A large vocabulary compiles twice as long."""
LARGE = WIDE.replace(
    vocab_size=32000,
    hidden_size=2048,
    intermediate_size=8192,
    num_layers=4,
    num_heads=16,
    num_kv_heads=8,
    max_position_embeddings=4096,
)
"""More weights than a TPU's fast memory holds."""

CAPACITY = 1280
"""Positions with which no weight has as many elements as a layer's cache."""

DRAFTERS = make_drafters(WIDE.replace(**ONE_LAYER))
CHIPS = {1: ("v5e:1", dict()), 4: ("v5e:2x2", dict(model=4)), 8: ("v5e:2x4", dict(data=2, model=4))}
"""Devices and axes of the meshes by their number of chips."""
CELLS = sorted((name, (1, 4, 8)[i % 3]) for i, name in enumerate((*STRUCTURES, *SHARES["tpu"])))
"""Drafters of each structure on one mesh; plain rounds run on every mesh. A compilation takes 10 to 25 s of a core."""


def compile_for(chips: int, config, drafter: Drafter, batch: int, capacity: int) -> tuple[str, Figures]:
    """The text and the figures of the loop; it writes the donated caches in place and never calls the host."""
    pytest.importorskip("libtpu", reason="needs libtpu, the TPU compiler; scripts/test.sh --all installs it")
    device, axes = CHIPS[chips]
    mesh = make_mesh(**axes, devices=list(compile_only(*parse_device(device))))
    drafts = (config.replace(**ONE_LAYER),) * drafter.needs.least if isinstance(drafter.needs, Models) else ()
    program = abstract(config, drafter, drafts, mesh, batch, capacity, jnp.dtype("bfloat16"))
    loop, work = compile_loop(program)
    text = loop.as_text()
    assert len(hlo.in_loops(text)) > 300
    assert hlo.host_calls(text) == []
    assert loop.memory_analysis().alias_size_in_bytes >= sum(map(stored_bytes, caches_of(program.state)))
    return text, figures_of(program, loop, work)


def large_reductions(figures: Figures) -> float:
    """All-reduces of a round that carry more than a number for each row, such as whether all rows are done."""
    return sum(count for (kind, size), count in figures.collectives.items() if kind == "all-reduce" and size > 64)


@pytest.mark.parametrize(("method", "chips"), CELLS)
def test_drafters_copy_no_cache(method: str, chips: int):
    """Batch 2: the row loop that writes the cache made libtpu 0.0.42.1 fail from two rows on."""
    _, figures = compile_for(chips, WIDE, DRAFTERS[method], batch=2, capacity=CAPACITY)
    assert figures.copies == 0


@pytest.mark.parametrize("chips", CHIPS)
def test_a_plain_round_reads_weights_and_cache_once(chips: int):
    """At most 1.1 times their bytes, and two all-reduces a layer.

    With a single row on each device of a mesh that splits rows and weights, libtpu 0.0.42.1 converts some weights to
    float32 first, and moves 1.75 times the bytes. Two rows are multiplied as they are.
    """
    text, figures = compile_for(chips, LARGE, Plain(), batch=2 * CHIPS[chips][1].get("data", 1), capacity=CAPACITY)
    assert figures.copies == 0
    assert figures.least <= figures.moved <= 1.1 * figures.least
    assert traffic.Program(text).bytes_moved() == figures.moved
    assert large_reductions(figures) == (2 * LARGE.num_layers if chips > 1 else 0)


def test_parts_of_the_cache_stay_on_their_devices():
    """The chunks of a key head are read where the head is: no collective carries as much as a tenth of a layer's keys."""
    drafter = PartialCache(attention_sinks=3, draft_window=9, cache_chunks=3, chunk_size=5, num_speculative_tokens=2)
    _, figures = compile_for(8, WIDE, drafter, batch=2, capacity=CAPACITY)
    keys = 2 * 2 * WIDE.num_kv_heads * CAPACITY * WIDE.head_dim
    assert figures.copies == 0 and max(size for _, size in figures.collectives) < keys / 10


def test_a_single_row_copies_no_cache():
    assert compile_for(1, WIDE, DraftModel(5), 1, capacity=CAPACITY)[1].copies == 0


def test_rounds_of_some_slots_copy_no_cache_whole():
    """Two of four slots: their rows are copied in pieces, before the rounds and after them, and both states in place."""
    pytest.importorskip("libtpu", reason="needs libtpu, the TPU compiler; scripts/test.sh --all installs it")
    mesh, drafter = make_mesh(devices=list(compile_only(*parse_device("v5e:1")))), DraftModel(3)
    sizes = CAPACITY, jnp.dtype("bfloat16")
    all_slots, some_slots = (abstract(WIDE, drafter, (WIDE.replace(**ONE_LAYER),), mesh, n, *sizes) for n in (4, 2))
    number = lambda dtype, *shape: jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, PartitionSpec()))
    axes = jax.tree.map(lambda leaf: 0 if leaf.ndim else -1, all_slots.state)
    static = dict(drafter=drafter, rule=resolve("auto", drafter.drawn), most_rounds=8)
    run = jax.jit(partial(row_subset.advance, axes=axes, **static), donate_argnums=(2, 3))
    states, which = (all_slots.state, some_slots.state), (number(jnp.int32, 2), number(bool, 2), number(jnp.int32))
    with use_mesh(mesh), own_settings():
        compiled = run.lower(all_slots.model, all_slots.parameters, *states, *which).compile()
    caches = [*caches_of(all_slots.state), *caches_of(some_slots.state)]
    assert hlo.moved(compiled.as_text(), {leaf.size for leaf in caches}, everywhere=True) == []
    assert compiled.memory_analysis().alias_size_in_bytes >= sum(map(stored_bytes, caches))
