"""The measurements of one model with a cache of one size."""

import dataclasses
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from gpu_page import ATTENTIONS, VARIANTS
from plan import GRAPHS, NODES, Plan
from timing import alternate, failure, figure, persistent_cache, timed

from specjax import Decoder, DecodeState, ModelConfig, Tree
from specjax.checkpoints.tensors import abstract_decoder
from specjax.core.cache import KVCache, empty
from specjax.core.sampling import random_keys, sampling_params
from specjax.core.state import Requests
from specjax.core.stats import Counters
from specjax.core.tree import chain
from specjax.drafters import Plain
from specjax.kernels.gpu.attention import Scores
from specjax.loop import decode
from specjax.models.attention import rotate_and_attend
from specjax.models.offload import to_host
from specjax.models.rounding import quantise_module
from specjax.rules.walks import argmax_walk
from specjax.tools.plan import hlo, launches


class Bench:
    """One model with a cache of one size.

    Every timed loop donates the cache, and its result returns it.
    """

    def __init__(self, config: ModelConfig, context: int, plan: Plan):
        self.config, self.plan, self.context = config, plan, context
        self.length = context - plan.rounds - max(NODES) - 1
        self.model = random_model(config)
        self.layers = self.random_layers()
        self.programs: dict = {}

    def state(self, nodes: int) -> DecodeState:
        """A row in the middle of a text."""
        request = Requests(
            tokens=None,
            lengths=jnp.ones(1, jnp.int32),
            sampling=sampling_params(1),
            keys=random_keys(0, 1),
            limit=jnp.full(1, self.context, jnp.int32),
            stop_ids=jnp.full((1, 1), -1, jnp.int32),
        )
        no, zero = jnp.zeros(1, bool), jnp.zeros(1, jnp.int32)
        return DecodeState(
            request=request,
            tokens=jnp.zeros((1, self.context), jnp.int32),
            from_draft=jnp.zeros((1, self.context), bool),
            cache=self.cache,
            drafter=(),
            done=no,
            failed=jnp.copy(no),
            constraint_state=zero,
            stop_state=jnp.copy(zero),
            round=jnp.int32(0),
            logprobs=None,
            counters=Counters.zeros(1, nodes - 1),
        )

    def random_layers(self) -> tuple:
        return random_like(empty(self.config, 1, self.context, jnp.bfloat16).layers)

    @property
    def cache(self) -> KVCache:
        if self.layers[0][0].is_deleted():  # A failed run donated them.
            self.layers = self.random_layers()
        return KVCache(self.layers, jnp.full(1, self.length, jnp.int32))

    def compile_times(self) -> dict:
        """Seconds to compile the loop, with an empty persistent cache and with a filled one."""

        def compile_loop() -> float:
            began = time.perf_counter()
            self.programs["loop", 1] = self.lowered("loop", 1).compile()
            return time.perf_counter() - began

        with persistent_cache():
            return {
                "compile/cold": figure([compile_loop()]),
                "compile/warm": figure([compile_loop() for _ in range(2)]),
            }

    def plain(self, bandwidth: float | None) -> dict:
        self.prepare([("loop", 1)])
        seconds = alternate({"loop": partial(self.loop, 1)}, self.plan.repeats)["loop"]
        rate = self.bytes_read() / seconds / 1e9
        share = {"plain/share": figure(rate / bandwidth)} if bandwidth else {}
        return {"plain/ms": figure(seconds * 1e3), "plain/gb_s": figure(rate)} | share

    def bytes_read(self) -> int:
        """The bytes that the target reads for each token.

        They are all weights, except an untied embedding, and the valid part of the cache.
        """
        weights = sum(x.nbytes for x in jax.tree.leaves(self.model))
        unread = 0 if self.config.tie_embeddings else self.model.embed[...].nbytes
        valid = (self.length + self.plan.rounds / 2) / self.context
        return weights - unread + int(valid * sum(x.nbytes for x in jax.tree.leaves(self.layers)))

    def copies(self) -> dict:
        self.prepare([("loop", 1)])
        sizes = {leaf.size for leaf in jax.tree.leaves(self.layers)}
        return {"copies": figure([len(hlo.moved(self.programs["loop", 1].as_text(), sizes))])}

    def forwards(self) -> dict:
        return self.against_one("forward", self.forward)

    def rounds(self) -> dict:
        return {key.replace("loop", "round"): value for key, value in self.against_one("loop", self.loop).items()}

    def dispatch(self) -> dict:
        self.prepare([("loop", 1), ("step", 1)])
        seconds = alternate({"loop": partial(self.loop, 1), "step": self.steps}, self.plan.repeats)
        return {"dispatch": figure(seconds["loop"] / seconds["step"])}

    def variants(self) -> dict:
        """The times of other forms of the plain loop, divided by the loop's own."""
        kinds = ("loop", *VARIANTS)
        self.prepare([(kind, 1) for kind in kinds])
        seconds = alternate({kind: partial(self.loop, 1, kind) for kind in kinds}, self.plan.repeats)
        return {f"variant/{name}": figure(seconds[name] / seconds["loop"]) for name in VARIANTS}

    def packed(self, form: str) -> dict:
        """The time of a plain round with weights of another form, as a divisor of the time with bfloat16."""
        return {form: figure(self.against_other(jax.jit(quantise_module, static_argnums=1)(self.model, form))[1])}

    def offload(self) -> dict:
        """Rounds of a model whose layers are in the host's memory: the speed of the link, and what a tree costs."""
        model = nnx.clone(self.model)
        size = sum(x.nbytes for x in jax.tree.leaves(model.layers))
        model.layers = to_host(model.layers)
        each, _ = self.against_other(model, (1, 16), rounds=4, repeats=3)  # a round reads all layers over the link
        return {"offload/gb_s": figure(size / each[1] / 1e9), "offload/16": figure(each[16] / each[1])}

    def against_other(
        self, model: Decoder, sizes: tuple[int, ...] = (1,), rounds: int | None = None, repeats: int | None = None
    ) -> tuple[dict[int, np.ndarray], np.ndarray]:
        """Seconds per round of another model for trees of these sizes; and the plain time of this one, divided by its.

        ``rounds`` are those of a timed run of the other model; the defaults are those of the plan.
        """
        self.prepare([("loop", 1)])
        rounds = rounds or self.plan.rounds
        programs = {n: self.lower_loop(model, self.state(n), n).compile() for n in sizes}

        def loop(n: int) -> float:
            return self.timed_rounds(lambda state: programs[n](model, None, state, jnp.int32(rounds)), n, rounds)

        runs = {n: partial(loop, n) for n in sizes} | {"own": partial(self.loop, 1)}
        seconds = alternate(runs, repeats or self.plan.repeats)
        return seconds, seconds["own"] / seconds[1]

    def launches(self) -> dict:
        """Kernels of a plain round, and of a layer: the difference between models of two and three layers."""

        def text(layers: int, nodes: int) -> str:
            config = self.config.replace(num_layers=layers)
            model = abstract_decoder(config, jnp.bfloat16)
            cache = jax.eval_shape(lambda: empty(config, 1, self.context, jnp.bfloat16))
            lowered = self.lower_loop(model, self.state(nodes).replace(cache=cache), nodes)
            return lowered.compile().as_text()

        self.prepare([("loop", 1)])
        each = {nodes: launches.a_layer(text(2, nodes), text(3, nodes), 1) for nodes in (1, 16)}
        found = {f"launches/layer{nodes}": figure([count]) for nodes, count in each.items()}
        return {"launches/round": figure([launches.in_round(self.programs["loop", 1].as_text())])} | found

    def kernel(self) -> dict:
        """The largest difference between attention in a kernel and attention in products, for a chain of 16."""
        arguments = attention_arguments(self.config, 16, self.length)
        attend = lambda *arguments: fresh(our_attention).lower(*arguments).compile()(*arguments)
        with with_kernels():
            found = attend(*arguments, self.layers[:1])
        with with_kernels(False):
            expected = attend(*arguments, self.layers[:1])
        return {"kernel": figure([jnp.abs(found - expected).max()])}

    def against_one(self, kind: str, function: Callable[[int], float]) -> dict:
        """The times of trees, divided by the time of one node."""
        self.prepare([(kind, n) for n in (1, *self.plan.nodes)])
        seconds = alternate({n: partial(function, n) for n in (1, *self.plan.nodes)}, self.plan.repeats)
        return {f"{kind}/{n}": figure(seconds[n] / seconds[1]) for n in self.plan.nodes}

    def attention(self, nodes: int) -> dict:
        """Microseconds per layer of each implementation.

        The caches of all layers take turns, so each is read from memory.
        """
        found, runs = {}, {}
        for name in ATTENTIONS:
            try:
                runs[name] = self.attention_run(name, nodes)
            except Exception as error:  # cuDNN is missing or refuses these shapes.
                found[f"attention{nodes}/{name}"] = failure(error)
        seconds = alternate(runs, self.plan.repeats)
        each = {name: samples / self.config.num_layers * 1e6 for name, samples in seconds.items()}
        return found | {f"attention{nodes}/{name}": figure(samples) for name, samples in each.items()}

    def attention_run(self, name: str, nodes: int) -> Callable[[], float]:
        config, theirs = self.config, name in ("xla", "cudnn")
        arguments, function = attention_arguments(config, nodes, self.length), our_attention
        layers = self.layers
        if theirs:
            q = random_like(jnp.zeros((1, nodes, config.num_heads, config.head_dim), jnp.bfloat16))
            arguments, function = (q, arguments[1]), partial(their_attention, implementation=name)
            layers = jax.tree.map(lambda x: x.transpose(0, 2, 1, 3), self.layers)
        with with_kernels(name != "products"):
            program = fresh(function).lower(*arguments, layers).compile()
        return lambda: timed(lambda: program(*arguments, layers), calls=10)

    def lowered(self, kind: str, nodes: int):
        if kind == "forward":
            return jax.jit(score).lower(self.model, line(jnp.zeros(1, jnp.int32), nodes), self.state(nodes))
        if kind == "step":
            step = partial(decode.step, **setting(nodes))
            return jax.jit(step, donate_argnums=2).lower(self.model, None, self.state(nodes))
        with with_kernels(kind != "no kernels"):
            return self.lower_loop(self.model, self.state(nodes), nodes)

    def lower_loop(self, model, state: DecodeState, nodes: int):
        run = jax.jit(partial(decode.run, **setting(nodes)), donate_argnums=2)
        return run.lower(model, None, state, jnp.int32(0))

    def prepare(self, wanted: list[tuple[str, int]]) -> None:
        """Compiles the missing programs in parallel."""
        lowered = {key: self.lowered(*key) for key in wanted if key not in self.programs}

        def compile_program(key):
            options = {"xla_gpu_enable_command_buffer": GRAPHS[key[0]]} if key[0] in GRAPHS else None
            return lowered[key].compile(compiler_options=options)

        with ThreadPoolExecutor(max(len(lowered), 1)) as pool:
            self.programs |= dict(zip(lowered, pool.map(compile_program, lowered)))

    def loop(self, nodes: int, kind: str = "loop") -> float:
        """Seconds per round, in the loop."""
        until = jnp.int32(self.plan.rounds)
        return self.timed_rounds(lambda state: self.programs[kind, nodes](self.model, None, state, until), nodes)

    def steps(self) -> float:
        """Seconds per round, with one program call for each round and no wait between them."""

        def several(state):
            for _ in range(self.plan.rounds):
                state = self.programs["step", 1](self.model, None, state)
            return state

        return self.timed_rounds(several, 1)

    def timed_rounds(self, function: Callable, nodes: int, rounds: int | None = None) -> float:
        rounds = rounds or self.plan.rounds
        state = jax.block_until_ready(self.state(nodes))
        began = time.perf_counter()
        state = jax.block_until_ready(function(state))
        seconds = time.perf_counter() - began
        self.layers = state.cache.layers
        if int(state.round) != rounds or bool(state.done[0]):
            raise RuntimeError("the loop ended early")
        return seconds / rounds

    def forward(self, nodes: int) -> float:
        """Seconds of one target call with its logits."""
        arguments = self.model, line(jnp.zeros(1, jnp.int32), nodes), self.state(nodes)
        return timed(lambda: self.programs["forward", nodes](*arguments), calls=10)


@dataclasses.dataclass(frozen=True)
class Idle(Plain):
    """Proposes ``depth`` nodes, which the target scores and never accepts.

    A round costs their verification and emits one token.
    """

    depth: int = 0

    def propose(self, target, draft, state, key):
        return line(state.root, self.depth + 1), ()


def line(root: jax.Array, nodes: int) -> Tree:
    """A batched chain of ``nodes`` nodes, of which only the root can be accepted."""
    tokens = jnp.broadcast_to(root[:, None], (root.size, nodes))
    return jax.vmap(lambda row: chain(row, valid=jnp.arange(nodes) == 0))(tokens)


def score(model: Decoder, tree: Tree, state: DecodeState) -> jax.Array:
    """The likeliest token after every node of a batched tree."""
    return jnp.argmax(decode.score(model, tree, state).logits, -1)


def setting(nodes: int) -> dict:
    """The static arguments of a loop that scores ``nodes`` nodes in a round."""
    return dict(drafter=Idle(nodes - 1), rule=argmax_walk)


def fresh(function: Callable):
    """The jitted function, which is traced anew: JAX would reuse a trace of other kernels."""
    return jax.jit(lambda *arguments: function(*arguments))


@contextmanager
def with_kernels(really: bool = True):
    """A context in which specjax traces kernels if ``really``, and otherwise none."""
    with mock.patch.dict(os.environ, SPECJAX_KERNELS="1" if really else "0"):
        yield


def attention_arguments(config: ModelConfig, nodes: int, length: int) -> tuple[jax.Array, jax.Array]:
    """Random queries, keys and values [1, N, K, G + 2, D] of a chain, and the length of its past."""
    K, G, D = config.num_kv_heads, config.num_heads // config.num_kv_heads, config.head_dim
    return random_like(jnp.zeros((1, nodes, K, G + 2, D), jnp.float32)), jnp.full(1, length, jnp.int32)


def our_attention(qkv, length, layers):
    """The attention of every layer, one after the other; each gives the queries of the next."""
    B, N, K, parts, D = qkv.shape
    positions, mask = length[:, None] + jnp.arange(N), jnp.tril(jnp.ones((N, N), bool))
    angles = jnp.ones((B, N, D // 2)), jnp.zeros((B, N, D // 2))
    out = jnp.zeros(())
    for past in layers:
        out, _ = rotate_and_attend(qkv, angles, past, length, None, mask, positions, Scores(), past[0].dtype)
        queries = out.astype(jnp.float32).reshape(B, N, K, parts - 2, D)
        qkv = jnp.concatenate([queries, qkv[..., -2:, :]], -2)
    return out.astype(jnp.float32)


def their_attention(q, length, layers, implementation: str):
    """JAX's own attention of every layer, over caches in the layout it needs. q: [B, N, H, D]."""
    with jax.numpy_dtype_promotion("standard"):  # The code of JAX mixes dtypes.
        for k, v in layers:
            q = jax.nn.dot_product_attention(q, k, v, key_value_seq_lengths=length, implementation=implementation)
    return q


def random_model(config: ModelConfig) -> Decoder:
    """Bfloat16 weights drawn on the device, one array at a time."""
    leaves, structure = jax.tree.flatten(abstract_decoder(config, jnp.bfloat16))
    draw = lambda x: random_like(x, 0.02) if len(x.shape) == 2 else jnp.ones(x.shape, x.dtype)
    return jax.tree.unflatten(structure, [draw(x) for x in leaves])


def random_like(tree, scale: float = 1.0):
    """Normal numbers in the shapes and dtypes of ``tree``."""
    leaves, structure = jax.tree.flatten(tree)
    keys = jax.random.split(jax.random.key(0), len(leaves))
    drawn = [_normal(key, scale, leaf.shape, leaf.dtype) for key, leaf in zip(keys, leaves)]
    return jax.tree.unflatten(structure, drawn)


@partial(jax.jit, static_argnums=(1, 2, 3))
def _normal(key, scale: float, shape, dtype):
    return jax.random.normal(key, shape, dtype) * scale
