"""Compiled programs: how many there are, which buffers they reuse, and that a round moves nothing large.

The oracle is XLA's own text of the program, read by ``tools.plan.hlo``. The first tier compiles
plain decoding and a tree of a head; the second tier compiles every method. ``test_gpu_compiler.py``
and ``test_tpu_compiler.py`` ask the same questions.
"""

from importlib.metadata import version

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from support.loops import DRAFTERS, compile_loop
from support.program import MOVES, Program, count_compilations, make_blank_requests

from specjax import DecodeState, Generator
from specjax.drafters import Auto
from specjax.drafters.auto.arms import Arm
from specjax.models.layers import linear, lookup
from specjax.tools.plan import hlo

DRAFTERS = DRAFTERS | {"auto": Auto(arms=(Arm(0), Arm(2), Arm(2, True), Arm(2, True, 6)))}
PROGRAMS = [("none", 1), ("draft_model", 1)] + [(method, 4) for method in DRAFTERS if method != "none"]
FIRST_TIER = [("none", 1), ("eagle3", 4)]


@pytest.fixture(
    scope="module",
    params=[pytest.param(p, marks=() if p in FIRST_TIER else pytest.mark.slow) for p in PROGRAMS],
    ids=lambda p: f"{p[0]}-{p[1]}",
)
def program(request) -> Program:
    """The loop of a method at a batch size. Its text does not depend on how far XLA optimises the machine code."""
    method, batch = request.param
    return compile_loop(DRAFTERS[method], batch, options={"xla_backend_optimization_level": 0})


def test_loop_copies_no_cache(program: Program):
    assert len(hlo.in_loops(program.text)) > 1000
    assert hlo.moved(program.text, program.caches, MOVES) == []


def test_no_weight_is_copied_or_converted(program: Program):
    assert hlo.moved(program.text, program.weights, MOVES, everywhere=True) == []


def test_donated_caches_are_aliased(program: Program):
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in program.cache_leaves)
    assert program.compiled.memory_analysis().alias_size_in_bytes >= size


def test_loop_never_calls_the_host(program: Program):
    assert hlo.host_calls(program.text) == []


def test_loop_runs_without_transfers(program: Program):
    arguments = zeros(program.target), zeros(program.given), one_token_prompts(program.state), jnp.int32(5)
    with jax.transfer_guard("disallow"):
        state = jax.block_until_ready(program.compiled(*arguments))
    np.testing.assert_array_equal(state.round, 5)
    assert (state.cache.length >= 5).all()


def test_checker_sees_a_cache_copied():
    """The write at ``i`` does not depend on the product that reads the cache, so that XLA:CPU copies to be safe."""

    def careless(cache, x):
        def body(i, carry):
            cache, x = carry
            read = jnp.einsum("btd,bd->b", cache, x)
            return lax.dynamic_update_slice(cache, x[:, None], (0, i, 0)), x + read[:, None]

        return lax.fori_loop(0, 10, body, (cache, x))

    text = jax.jit(careless, donate_argnums=0).lower(jnp.zeros((2, 128, 32)), jnp.ones((2, 32))).compile().as_text()
    assert hlo.moved(text, {2 * 128 * 32})


@pytest.mark.parametrize("rows", [1, 2])
def test_checker_sees_a_weight_converted(rows: int):
    """XLA:CPU has no product for one row of bfloat16. It moves the conversion out of the loop, so look everywhere."""
    naive = lambda x, w: jnp.einsum("ni,oi->no", x.astype(w.dtype), w, preferred_element_type=jnp.float32)
    for product, converted in ((naive, rows == 1), (linear, False)):
        loop = jax.jit(lambda x, w: lax.fori_loop(0, 9, lambda i, x: product(x, w), x))
        text = loop.lower(jnp.ones((rows, 128)), jnp.ones((128, 128), jnp.bfloat16)).compile().as_text()
        assert bool(hlo.moved(text, {128 * 128}, MOVES, everywhere=True)) == converted


def test_no_table_is_stored_as_integers():
    """XLA:CPU has no lookup of bfloat16. It moves another form of the table out of the loop, and stores it."""
    as_integers = lambda table: lax.bitcast_convert_type(table, jnp.uint16)
    naive = lambda table, tokens: lax.bitcast_convert_type(as_integers(table)[tokens], table.dtype)
    table, tokens = jnp.ones((128, 128), jnp.bfloat16), jnp.ones(1, jnp.int32)
    # The older emitters of the tests make no such array, see ``conftest``. A later XLA may make none at all.
    has_older_emitters = version("jaxlib").startswith("0.10.")
    options = {"xla_cpu_use_fusion_emitters": True} if has_older_emitters else {}
    for read, stored in [(lookup, False)] + [(naive, True)] * has_older_emitters:
        after = lambda table, tokens: tokens + read(table, tokens)[:, 0].astype(jnp.int32)
        loop = jax.jit(lambda table, tokens: lax.fori_loop(0, 9, lambda i, tokens: after(table, tokens), tokens))
        text = loop.lower(table, tokens).compile(compiler_options=options).as_text()
        assert any(made.size == table.size for made in hlo.array_results(text)) == stored


def test_checker_sees_a_callback():
    call = lambda i, x: jax.pure_callback(np.abs, jax.ShapeDtypeStruct((), jnp.float32), x)
    text = jax.jit(lambda x: lax.fori_loop(0, 9, call, x)).lower(jnp.float32(1)).compile().as_text()
    assert hlo.host_calls(text)


def test_one_program_per_bucket(target):
    """Prompt lengths of a bucket, options, seeds and limits share a program. The next bucket costs one more prefill."""
    generator = Generator(target, "none", capacity=256)
    generator([5] * 9, max_new_tokens=4)
    assert count_compilations(generator, [5] * 4, max_new_tokens=8) == 0
    sampled = dict(temperature=0.7, top_k=5, top_p=0.9, min_p=0.1, seed=4)
    assert count_compilations(generator, [5] * 17, max_new_tokens=30, **sampled) == 0
    assert count_compilations(generator, [5] * 18, max_new_tokens=30, temperature=0.7, seed=5) == 1
    assert count_compilations(generator, [5] * 33, max_new_tokens=5) == 0


def zeros(tree):
    """Arrays of zeros for abstract arrays."""
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), tree)


def one_token_prompts(abstract: DecodeState) -> DecodeState:
    """The state that ``prefill`` returns for prompts of one token: everything is empty."""
    batch, capacity = abstract.tokens.shape
    state = zeros(abstract.replace(request=None))
    return state.replace(request=make_blank_requests(batch, capacity).replace(tokens=None))
