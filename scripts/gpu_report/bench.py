"""The measurements of one model with a cache of one size."""

import dataclasses
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import jax
import jax.numpy as jnp
from page import ATTENTIONS
from plan import NODES, Plan
from timing import alternate, failure, figure, persistent_cache, timed

from specjax import Decoder, DecodeState, ModelConfig, Tree, decode
from specjax.cache import KVCache, empty
from specjax.checkpoints.tensors import abstract_decoder
from specjax.drafters import Plain
from specjax.models.attention import attend
from specjax.planning import hlo
from specjax.rules.walks import argmax_walk
from specjax.sampling import random_keys, sampling_params
from specjax.state import RequestOptions
from specjax.stats import Counters
from specjax.tree import chain


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
        keys, stop_ids = random_keys(0, 1), jnp.full((1, 1), -1, jnp.int32)
        request = RequestOptions(sampling_params(1), keys, jnp.full(1, self.context, jnp.int32), stop_ids)
        no, zero = jnp.zeros(1, bool), jnp.zeros(1, jnp.int32)
        return DecodeState(
            request=request,
            tokens=jnp.zeros((1, self.context), jnp.int32),
            from_draft=jnp.zeros((1, self.context), bool),
            prompt_length=zero + 1,
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
        config, theirs = self.config, name != "specjax"
        heads = (config.num_heads,) if theirs else (config.num_kv_heads, config.num_heads // config.num_kv_heads)
        q = random_like(jnp.zeros((1, nodes, *heads, config.head_dim), jnp.bfloat16))
        layers = jax.tree.map(lambda x: x.transpose(0, 2, 1, 3), self.layers) if theirs else self.layers
        arguments = q, layers, jnp.full(1, self.length, jnp.int32)
        function = partial(their_attention, implementation=name) if theirs else our_attention
        program = jax.jit(function).lower(*arguments).compile()
        return lambda: timed(lambda: program(*arguments), calls=10)

    def lowered(self, kind: str, nodes: int):
        setting = dict(drafter=Idle(nodes - 1), rule=argmax_walk)
        if kind == "forward":
            return jax.jit(score).lower(self.model, line(jnp.zeros(1, jnp.int32), nodes), self.state(nodes))
        if kind == "step":
            return jax.jit(partial(decode.step, **setting), donate_argnums=2).lower(self.model, None, self.state(nodes))
        run = jax.jit(partial(decode.run, **setting), donate_argnums=2)
        return run.lower(self.model, None, self.state(nodes), jnp.int32(0))

    def prepare(self, wanted: list[tuple[str, int]]) -> None:
        """Compiles the missing programs in parallel."""
        lowered = {key: self.lowered(*key) for key in wanted if key not in self.programs}
        with ThreadPoolExecutor(max(len(lowered), 1)) as pool:
            self.programs |= dict(zip(lowered, pool.map(lambda program: program.compile(), lowered.values())))

    def loop(self, nodes: int) -> float:
        """Seconds per round, in the loop."""
        until = jnp.int32(self.plan.rounds)
        return self.timed_rounds(lambda state: self.programs["loop", nodes](self.model, None, state, until), nodes)

    def steps(self) -> float:
        """Seconds per round, with one program call for each round and no wait between them."""

        def several(state):
            for _ in range(self.plan.rounds):
                state = self.programs["step", 1](self.model, None, state)
            return state

        return self.timed_rounds(several, 1)

    def timed_rounds(self, function: Callable, nodes: int) -> float:
        state = jax.block_until_ready(self.state(nodes))
        began = time.perf_counter()
        state = jax.block_until_ready(function(state))
        seconds = time.perf_counter() - began
        self.layers = state.cache.layers
        if int(state.round) != self.plan.rounds or bool(state.done[0]):
            raise RuntimeError("the loop ended early")
        return seconds / self.plan.rounds

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


def our_attention(q, layers, length):
    """The ``attend`` of every layer, one after the other. q: [B, N, K, G, D]."""
    B, N, K, _, D = q.shape
    rows, mask = (jnp.ones((B, K, N, D), q.dtype),) * 2, jnp.tril(jnp.ones((N, N), bool))
    for past in layers:
        out = attend(q, past, length, rows, mask, length[:, None] + jnp.arange(N), None)
        q = out.reshape(q.shape).astype(q.dtype)
    return q


def their_attention(q, layers, length, implementation: str):
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
