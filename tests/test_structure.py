"""What the compiled programs look like: how many there are, what they alias, and that nothing large moves inside the loop."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import TINY
from flax import nnx
from jax import lax

from specjax import (
    Adaptive,
    Cascade,
    DraftModel,
    DraftTree,
    DynamicTree,
    Eagle3,
    Generator,
    Hydra,
    Merged,
    Mtp,
    Ngram,
    Plain,
    Suffix,
    Switch,
    TokenRecycling,
    decode,
    sampling_params,
)
from specjax.checkpoints.tensors import abstract_decoder
from specjax.drafters import parameters, several
from specjax.heads import KINDS, Eagle3Config, HydraConfig, MtpConfig
from specjax.models.layers import linear
from specjax.planning import hlo
from specjax.tree import expansion
from specjax.verify import resolve

# No product of axes below is shared by a cache leaf, a weight and an activation, so that sizes tell them apart.
TARGET = TINY.replace(vocab_size=320, hidden_size=128, intermediate_size=192, head_dim=32)
DRAFT = TINY.replace(vocab_size=320, hidden_size=96, intermediate_size=160, num_layers=1, num_kv_heads=1, head_dim=48)
CAPACITY = 176
METHODS = {"none": Plain(), "ngram": Ngram(3), "draft_model": DraftModel(3)}
CONTROLLED = {"switch": Switch((Ngram(2), DraftModel(2))), "ema": Adaptive(DraftModel(2))}
OTHERS = {
    "suffix": Suffix(2, 3),
    "token_recycling": TokenRecycling(expansion((2, 1)), 2),
    "tree": DraftTree(expansion((2, 1))),
    "dynamic_tree": DynamicTree(4, 2, 2),
    "merged": Merged(2),
    "cascade": Cascade(2, 2),
}
HEAD = TINY.replace(vocab_size=320, hidden_size=128, intermediate_size=160, num_layers=1, num_kv_heads=1, head_dim=48)
HEADED = {
    "eagle3": Eagle3(6, 3, 2, head=Eagle3Config(HEAD, 128, 2, (0, 1, 2), draft_vocab_size=288)),
    "one pass": Eagle3(7, 3, 2, head=Eagle3Config(HEAD, 128, 2, (0, 1, 2), draft_vocab_size=288, mask_token=1)),
    "mtp": Mtp(num_speculative_tokens=3, head=MtpConfig(HEAD, target_layers=2, modules=2)),
    "hydra": Hydra(head=HydraConfig(128, 2, 320, num_heads=2, layers=HEAD)),
}
MOVES = ("copy", "convert", "transpose")


class Program:
    """``decode.run`` compiled for abstract models: bfloat16 weights, and a cache of ``dtype``.

    Attributes:
      target, given, state: its arguments, as shapes; ``draft`` is the draft model in ``given``, or the head.
      caches: elements of each cache leaf, the draft's included.
      weights: elements of each weight matrix.
    """

    def __init__(self, drafter, batch, dtype=jnp.float32, models=(TARGET, DRAFT), capacity=CAPACITY, device=None, options=None, draft=None):
        placed = lambda tree: jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=device), tree)
        self.target, self.draft = (placed(abstract_decoder(config, jnp.bfloat16)) for config in models)
        self.draft = self.draft if draft is None else placed(draft)
        self.draft = (self.draft,) * drafter.needs_draft if several(drafter) else self.draft
        self.given = parameters(drafter, self.draft, models[0].vocab_size)
        rows = jax.ShapeDtypeStruct((batch,), jnp.int32)
        prompt = jax.ShapeDtypeStruct((batch, capacity), jnp.int32)
        keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), batch))
        prefill = partial(decode.prefill, drafter=drafter, chunk=16, dtype=dtype)
        stops = jax.ShapeDtypeStruct((batch, 1), jnp.int32)
        self.state = placed(jax.eval_shape(prefill, self.target, self.given, prompt, rows, sampling_params(batch), keys, rows, stops))
        run = jax.jit(partial(decode.run, drafter=drafter, rule=resolve("auto", drafter.sampled)), donate_argnums=2)
        lowered = run.lower(self.target, self.given, self.state, placed(jax.ShapeDtypeStruct((), jnp.int32)))
        self.compiled = lowered.compile(compiler_options=options)
        self.text = self.compiled.as_text()
        self.cache_leaves = [leaf for leaf in jax.tree.leaves(self.state) if leaf.ndim == 4]
        self.caches = {leaf.size for leaf in self.cache_leaves}
        self.weights = {leaf.size for leaf in jax.tree.leaves((self.target, self.draft)) if leaf.ndim == 2}


PROGRAMS = [(method, batch) for method in METHODS for batch in (1, 4)] + [(method, 4) for method in CONTROLLED | OTHERS | HEADED]


@pytest.fixture(scope="module", params=PROGRAMS, ids=lambda p: f"{p[0]}-{p[1]}")
def program(request) -> Program:
    method, batch = request.param
    # The machine code is not looked at: without its optimisation the same instructions compile in half the time.
    drafter = (METHODS | CONTROLLED | OTHERS | HEADED)[method]
    head = abstract_head(drafter.head) if method in HEADED else None
    return Program(drafter, batch, options={"xla_backend_optimization_level": 0}, draft=head)


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
    B = program.state.tokens.shape[0]
    arguments = zeros(program.target), zeros(program.given), one_token_prompts(program.state, B), jnp.int32(5)
    with jax.transfer_guard("disallow"):
        state = jax.block_until_ready(program.compiled(*arguments))
    np.testing.assert_array_equal(state.step, 5)
    assert (state.cache.length >= 5).all()


def test_checker_sees_a_cache_copied():
    """The write at ``i`` does not depend on the product that reads the cache, and XLA:CPU copies to be safe."""

    def careless(cache, x):
        def turn(i, carry):
            cache, x = carry
            read = jnp.einsum("btd,bd->b", cache, x)
            return lax.dynamic_update_slice(cache, x[:, None], (0, i, 0)), x + read[:, None]

        return lax.fori_loop(0, 10, turn, (cache, x))

    text = jax.jit(careless, donate_argnums=0).lower(jnp.zeros((2, 128, 32)), jnp.ones((2, 32))).compile().as_text()
    assert hlo.moved(text, {2 * 128 * 32})


@pytest.mark.parametrize("rows", [1, 2])
def test_checker_sees_a_weight_converted(rows: int):
    """One row of bfloat16 is what XLA:CPU has no product for; the conversion moves out of the loop, so look everywhere."""
    naive = lambda x, w: jnp.einsum("ni,oi->no", x.astype(w.dtype), w, preferred_element_type=jnp.float32)
    for product, converted in ((naive, rows == 1), (linear, False)):
        loop = jax.jit(lambda x, w: lax.fori_loop(0, 9, lambda i, x: product(x, w), x))
        text = loop.lower(jnp.ones((rows, 128)), jnp.ones((128, 128), jnp.bfloat16)).compile().as_text()
        assert bool(hlo.moved(text, {128 * 128}, MOVES, everywhere=True)) == converted


def test_checker_sees_a_callback():
    shout = lambda i, x: jax.pure_callback(np.abs, jax.ShapeDtypeStruct((), jnp.float32), x)
    text = jax.jit(lambda x: lax.fori_loop(0, 9, shout, x)).lower(jnp.float32(1)).compile().as_text()
    assert hlo.host_calls(text)


def test_one_program_per_bucket(target):
    """Lengths within a bucket, options, seeds and limits share the program; the next bucket of prompts costs one more prefill."""
    generator = Generator(target, capacity=256)
    generator([5] * 9, max_new_tokens=4)
    assert compilations(generator, [5] * 4, max_new_tokens=8) == 0
    assert compilations(generator, [5] * 17, max_new_tokens=30, temperature=0.7, top_k=5, top_p=0.9, min_p=0.1, seed=4) == 0
    assert compilations(generator, [5] * 18, max_new_tokens=30, temperature=0.7, seed=5) == 1
    assert compilations(generator, [5] * 33, max_new_tokens=5) == 0


@pytest.mark.parametrize("batch", [1, 4])
def test_tpu_loop_copies_no_cache(batch: int, monkeypatch):
    """The TPU's own compiler, ahead of time and without a TPU, on layouts of realistic widths."""
    pytest.importorskip("libtpu", reason="needs libtpu, the TPU compiler: pip install libtpu")
    wide = TINY.replace(vocab_size=32000, hidden_size=512, intermediate_size=1408, num_heads=4, num_kv_heads=2, head_dim=128)
    models = wide, wide.replace(num_layers=1, num_kv_heads=1)
    program = Program(DraftModel(5), batch, jnp.bfloat16, models, 1024, tpu(monkeypatch))
    assert len(hlo.in_loops(program.text)) > 1000
    assert hlo.moved(program.text, program.caches) == []
    test_donated_caches_are_aliased(program)
    test_loop_never_calls_the_host(program)


def abstract_head(config) -> nnx.Module:
    """A head that holds shapes instead of arrays."""
    return nnx.eval_shape(lambda: KINDS[config.kind].module(config, jax.random.key(0), jnp.bfloat16))


def zeros(tree):
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), tree)


def one_token_prompts(abstract: decode.DecodeState, batch: int) -> decode.DecodeState:
    """What ``prefill`` returns for prompts of one token: everything empty."""
    keys = jax.random.split(jax.random.key(0), batch)
    state = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), abstract.replace(key=None))
    limit, stops = jnp.full(batch, 100, jnp.int32), jnp.full((batch, 1), -1, jnp.int32)
    return state.replace(key=keys, sampling=sampling_params(batch), limit=limit, stop_ids=stops)


def compilations(generator: Generator, *args, **options) -> int:
    """How many programs a call compiles."""
    count = []
    listen = lambda event, *_, **__: count.append(event) if event.endswith("backend_compile_duration") else None
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        generator(*args, **options)
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    return len(count)


def tpu(monkeypatch) -> jax.sharding.Sharding:
    """One chip of a TPU v5e that exists only for the compiler."""
    from jax.experimental import topologies

    about = dict(
        TPU_ACCELERATOR_TYPE="v5litepod-8", TPU_SKIP_MDS_QUERY="1", TPU_WORKER_HOSTNAMES="localhost", ALLOW_MULTIPLE_LIBTPU_LOAD="1"
    )
    for name, value in about.items():  # without them libtpu asks the network which TPU this is
        monkeypatch.setenv(name, value)
    topology = topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x2")
    return jax.sharding.SingleDeviceSharding(topology.devices[0])
