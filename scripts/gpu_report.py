"""Measures how close specjax comes to what a GPU can do, in one call under ten minutes: docs/results/gpu_report.{json,md}.

    python scripts/gpu_report.py                      random weights of real shapes in bfloat16, batch 1
    python scripts/gpu_report.py --toy --output /tmp/report           the same program on any machine, at toy size
    python scripts/gpu_report.py --empty              only the Markdown table, with nothing measured

Every column has a share of the time, and every measurement stands alone: one that fails leaves its error in its cell, one that
comes too late is "not measured", and what was found so far is always on disk.
"""

import argparse
import dataclasses
import json
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.compilation_cache import compilation_cache

from specjax import Decoder, DecodeState, ModelConfig, Plain, Tree, decode, sampling_params
from specjax.cache import KVCache, empty
from specjax.checkpoints.tensors import abstract_decoder
from specjax.models.attention import attend
from specjax.models.config import Rope
from specjax.planning import hlo
from specjax.stats import Counters
from specjax.tree import chain
from specjax.verify import argmax_walk

RESULTS = Path(__file__).resolve().parent.parent / "docs" / "results" / "gpu_report"
NODES = (8, 16, 64)
ATTENDED = (1, 16)
CACHE_SETTINGS = "jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs", "jax_persistent_cache_min_entry_size_bytes"
ATTENTIONS = {"specjax": "`attend`, the nodes among themselves included", "xla": "`dot_product_attention`, XLA", "cudnn": "the same, cuDNN"}

LLAMA_3_8B = ModelConfig(
    "llama", vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_layers=32, num_heads=32, num_kv_heads=8, head_dim=128,
    max_position_embeddings=8192, norm_eps=1e-5, rope=Rope(theta=500000.0),
)  # fmt: skip
QWEN3_4B = ModelConfig(
    "qwen3", vocab_size=151936, hidden_size=2560, intermediate_size=9728, num_layers=36, num_heads=32, num_kv_heads=8, head_dim=128,
    max_position_embeddings=40960, rope=Rope(theta=1000000.0), tie_embeddings=True, qk_norm=True,
)  # fmt: skip
TINY = ModelConfig(
    "llama", vocab_size=61, hidden_size=32, intermediate_size=48, num_layers=1, num_heads=4, num_kv_heads=2, head_dim=8,
    max_position_embeddings=256,
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Plan:
    """How much is measured.

    Attributes:
      models: shapes by name.
      contexts: cache capacities, filled but for the room that the rounds need.
      nodes: sizes of trees whose verification is compared with that of one node.
      attended: sizes of trees whose attention to the past is timed.
      rounds: of a timed loop.
      repeats: timed runs; three more go before them.
      copied: bytes of the array whose copy is timed.
      seconds: for everything. A compilation under way is not broken off, hence the distance to ten minutes.
    """

    models: dict
    contexts: tuple[int, ...] = (1024, 8192)
    nodes: tuple[int, ...] = NODES
    attended: tuple[int, ...] = ATTENDED
    rounds: int = 64
    repeats: int = 10
    copied: int = 4 << 30
    seconds: float = 510


FULL = Plan({"Llama-3-8B": LLAMA_3_8B, "Qwen3-4B": QWEN3_4B})
TOY = Plan({"toy": TINY}, contexts=(128,), nodes=(16,), attended=(16,), rounds=4, repeats=2, copied=1 << 20, seconds=3600)


def rows() -> list[tuple[str, str, str]]:
    """Key, title and goal of each line of the table."""
    lines = [
        ("plain/ms", "plain decoding, ms per token", ""),
        ("plain/gb_s", "weights and cache read, GB/s", ""),
        ("plain/share", "share of the copy bandwidth", "at least 0.90"),
    ]
    goal = {16: "at most 1.05"}
    lines += [(f"forward/{n}", f"forward of {n} nodes, times that of one", goal.get(n, "")) for n in NODES]
    lines += [(f"round/{n}", f"whole round of {n} nodes, times that of one", goal.get(n, "")) for n in NODES]
    lines += [
        ("dispatch", "round in the loop, times a single `step` called from Python", ""),
        ("copies", "cache-sized copies in the compiled loop", "0"),
    ]
    lines += [
        (f"attention{n}/{name}", f"attention of {n} to the past, µs a layer: {text}", "")
        for n in ATTENDED
        for name, text in ATTENTIONS.items()
    ]
    return lines + [("compile/cold", "compiling the loop, s", ""), ("compile/warm", "the same from the persistent cache, s", "")]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--output", type=Path, default=RESULTS, help="path of the two files, without suffix (default: docs/results/gpu_report)"
    )
    parser.add_argument("--toy", action="store_true", help="tiny models and few repeats, on any machine")
    parser.add_argument("--empty", action="store_true", help="write the Markdown table with nothing measured")
    args = parser.parse_args(argv)
    plan = TOY if args.toy else FULL
    if args.empty:
        save(blank(plan), args.output, (".md",))
    elif args.toy or jax.default_backend() == "gpu":
        measure(plan, args.output)
    else:
        print("gpu_report: no GPU here; run it on a GPU host, or with --toy to try the program", file=sys.stderr)
        return 2
    return 0


def measure(plan: Plan, output: Path) -> None:
    """Fills a report column by column; each takes an equal share of the time that is left."""
    finish = time.monotonic() + plan.seconds
    report = blank(plan)
    report["machine"] = {"device": jax.devices()[0].device_kind, "platform": jax.default_backend(), "jax": jax.__version__}
    keep(report, "copy_gb_s", lambda: {"copy_gb_s": copy_bandwidth(plan)})
    wanted = [(name, context) for name in plan.models for context in plan.contexts]
    for i, (name, context) in enumerate(wanted):
        deadline = time.monotonic() + (finish - time.monotonic()) / (len(wanted) - i)
        figures = report["columns"][column(name, context)]

        def saved(group):
            print(f"{column(name, context)}: {group}", file=sys.stderr, flush=True)
            save(report, output)

        keep(
            figures, "all", lambda: measure_column(plan.models[name], context, plan, report.get("copy_gb_s", {}), figures, deadline, saved)
        )
    save(report, output)


def measure_column(config: ModelConfig, context: int, plan: Plan, copying: dict, figures: dict, deadline: float, saved: Callable) -> dict:
    """Adds all figures of one model at one context, as long as there is time. Returns them."""
    bench = Bench(config, context, plan)
    groups = {
        "compile": bench.compile_times,
        "plain": lambda: bench.plain(copying.get("median")),
        "copies": bench.copies,
        "forward": bench.forwards,
        "round": bench.rounds,
        "dispatch": bench.dispatch,
    } | {f"attention{nodes}": partial(bench.attention, nodes) for nodes in plan.attended}
    for group, function in groups.items():
        if time.monotonic() < deadline:
            keep(figures, group, function)
            saved(group)
    return figures


def keep(figures: dict, group: str, function: Callable[[], dict]) -> None:
    """Adds what a measurement returns, or its error under the name of its group."""
    try:
        figures |= function()
    except Exception as error:  # whatever went wrong must not take the other figures along
        figures[group] = failure(error)


class Bench:
    """One model with a cache of one size. The cache is donated to every timed loop and taken back from its result."""

    def __init__(self, config: ModelConfig, context: int, plan: Plan):
        self.config, self.plan, self.context = config, plan, context
        self.length = context - plan.rounds - max(NODES) - 1
        self.model = random_model(config)
        self.layers = self.random_layers()
        self.programs: dict = {}

    def state(self, nodes: int) -> DecodeState:
        """A row in the middle of a text."""
        B = 1
        return DecodeState(
            tokens=jnp.zeros((B, self.context), jnp.int32), cache=self.cache, drafter=(), sampling=sampling_params(B),
            prompt=jnp.ones(B, jnp.int32), states=jnp.zeros(B, jnp.int32), stops=None, stopping=jnp.zeros(B, jnp.int32), logprobs=None,
            key=jax.random.split(jax.random.key(0), B), limit=jnp.full(B, self.context, jnp.int32), stop_ids=jnp.full((B, 1), -1, jnp.int32),
            done=jnp.zeros(B, bool), failed=jnp.zeros(B, bool), step=jnp.int32(0), counters=Counters.zeros(B, nodes - 1),
        )  # fmt: skip

    def random_layers(self) -> tuple:
        return random_like(empty(self.config, 1, self.context, jnp.bfloat16).layers)

    @property
    def cache(self) -> KVCache:
        if self.layers[0][0].is_deleted():  # a run that failed took them along
            self.layers = self.random_layers()
        return KVCache(self.layers, jnp.full(1, self.length, jnp.int32))

    def compile_times(self) -> dict:
        """Seconds from Python to a program, with an empty persistent cache and with a full one."""

        def once() -> float:
            began = time.perf_counter()
            self.programs["loop", 1] = self.lowered("loop", 1).compile()
            return time.perf_counter() - began

        with persistent_cache():
            return {"compile/cold": figure([once()]), "compile/warm": figure([once() for _ in range(2)])}

    def plain(self, bandwidth: float | None) -> dict:
        self.prepare([("loop", 1)])
        seconds = alternate({"loop": partial(self.loop, 1)}, self.plan.repeats)["loop"]
        rate = self.bytes_read() / seconds / 1e9
        share = {"plain/share": figure(rate / bandwidth)} if bandwidth else {}
        return {"plain/ms": figure(seconds * 1e3), "plain/gb_s": figure(rate)} | share

    def bytes_read(self) -> int:
        """What a token must read: all weights but an embedding that is only looked up, and the valid part of the cache."""
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
        """Times of trees over that of one node."""
        self.prepare([(kind, n) for n in (1, *self.plan.nodes)])
        seconds = alternate({n: partial(function, n) for n in (1, *self.plan.nodes)}, self.plan.repeats)
        return {f"{kind}/{n}": figure(seconds[n] / seconds[1]) for n in self.plan.nodes}

    def attention(self, nodes: int) -> dict:
        """Microseconds a layer of each implementation, over the caches of all layers in turn so that they come from memory."""
        found, runs = {}, {}
        for name in ATTENTIONS:
            try:
                runs[name] = self.attention_run(name, nodes)
            except Exception as error:  # no cuDNN, or not for these shapes
                found[f"attention{nodes}/{name}"] = failure(error)
        seconds = alternate(runs, self.plan.repeats)
        return found | {f"attention{nodes}/{name}": figure(s / self.config.num_layers * 1e6) for name, s in seconds.items()}

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
            return jax.jit(score).lower(self.model, self.cache, line(jnp.zeros(1, jnp.int32), nodes))
        if kind == "step":
            return jax.jit(partial(decode.step, **setting), donate_argnums=2).lower(self.model, None, self.state(nodes))
        return jax.jit(partial(decode.run, **setting), donate_argnums=2).lower(self.model, None, self.state(nodes), jnp.int32(0))

    def prepare(self, wanted: list[tuple[str, int]]) -> None:
        """Compiles the programs that are not there yet, side by side."""
        lowered = {key: self.lowered(*key) for key in wanted if key not in self.programs}
        with ThreadPoolExecutor(max(len(lowered), 1)) as pool:
            self.programs |= dict(zip(lowered, pool.map(lambda program: program.compile(), lowered.values())))

    def loop(self, nodes: int) -> float:
        """Seconds a round, in the loop."""
        until = jnp.int32(self.plan.rounds)
        return self.timed_rounds(lambda state: self.programs["loop", nodes](self.model, None, state, until), nodes)

    def steps(self) -> float:
        """Seconds a round, one program call each and never waiting for a result."""

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
        if int(state.step) != self.plan.rounds or bool(state.done[0]):
            raise RuntimeError("the loop ended early")
        return seconds / self.plan.rounds

    def forward(self, nodes: int) -> float:
        """Seconds of one target call with its logits."""
        arguments = self.model, self.cache, line(jnp.zeros(1, jnp.int32), nodes)
        return timed(lambda: self.programs["forward", nodes](*arguments), calls=10)


@dataclasses.dataclass(frozen=True)
class Idle(Plain):
    """Adds ``depth`` nodes that are scored and never accepted: a round costs their verification and emits one token."""

    depth: int = 0

    def draft(self, target, draft, state, key):
        return line(state.root, self.depth + 1), ()


def line(root: jax.Array, nodes: int) -> Tree:
    """A batched chain of which only the root may be accepted."""
    tokens = jnp.broadcast_to(root[:, None], (root.size, nodes))
    return jax.vmap(lambda row: chain(row, valid=jnp.arange(nodes) == 0))(tokens)


def score(model: Decoder, cache: KVCache, tree: Tree) -> jax.Array:
    return jnp.argmax(decode.forward(model, tree, cache).logits, -1)


def our_attention(q, layers, length):
    """Every layer's ``attend``, each after the one before. q: [B, N, K, G, D]."""
    B, N, K, _, D = q.shape
    rows = (jnp.ones((B, K, N, D), q.dtype),) * 2
    for past in layers:
        q = (
            attend(q, past, length, rows, jnp.tril(jnp.ones((N, N), bool)), length[:, None] + jnp.arange(N), None)
            .reshape(q.shape)
            .astype(q.dtype)
        )
    return q


def their_attention(q, layers, length, implementation: str):
    """The same by JAX's own function, over caches that were laid out as it wants them. q: [B, N, H, D]."""
    with jax.numpy_dtype_promotion("standard"):  # its own code needs no less
        for k, v in layers:
            q = jax.nn.dot_product_attention(q, k, v, key_value_seq_lengths=length, implementation=implementation)
    return q


def random_model(config: ModelConfig) -> Decoder:
    """Bfloat16 weights drawn on the device, one array at a time."""
    leaves, structure = jax.tree.flatten(abstract_decoder(config, jnp.bfloat16))
    return jax.tree.unflatten(structure, [random_like(x, 0.02) if len(x.shape) == 2 else jnp.ones(x.shape, x.dtype) for x in leaves])


def random_like(tree, scale: float = 1.0):
    """Normal numbers in the shapes and dtypes of ``tree``."""
    leaves, structure = jax.tree.flatten(tree)
    keys = jax.random.split(jax.random.key(0), len(leaves))
    return jax.tree.unflatten(structure, [_normal(key, scale, leaf.shape, leaf.dtype) for key, leaf in zip(keys, leaves)])


@partial(jax.jit, static_argnums=(1, 2, 3))
def _normal(key, scale: float, shape, dtype):
    return jax.random.normal(key, shape, dtype) * scale


def copy_bandwidth(plan: Plan) -> dict:
    """Bytes read and written each second, in GB/s, by copying a large array."""
    source = jnp.zeros(plan.copied // 2, jnp.bfloat16)
    copy = jax.jit(jnp.copy)
    seconds = alternate({"copy": lambda: timed(lambda: copy(source))}, plan.repeats)["copy"]
    return figure(2 * source.nbytes / seconds / 1e9)


def timed(call: Callable, calls: int = 1) -> float:
    """Seconds of a call; several follow one another without waiting, so that the device and not Python sets the pace."""
    began = time.perf_counter()
    for _ in range(calls):
        out = call()
    jax.block_until_ready(out)
    return (time.perf_counter() - began) / calls


def alternate(functions: dict, repeats: int) -> dict:
    """Samples [repeats] of each function, which returns seconds: three warm-up calls each, then in turns."""
    for function in functions.values():
        for _ in range(3):
            function()
    turns = [[function() for function in functions.values()] for _ in range(repeats)]
    return dict(zip(functions, np.array(turns).T))


@contextmanager
def persistent_cache():
    """JAX's compilation cache in a new directory, and afterwards as it was."""
    with tempfile.TemporaryDirectory() as directory:
        before = configure(zip(CACHE_SETTINGS, (directory, 0.0, -1)))
        try:
            yield
        finally:
            configure(before.items())


def configure(settings) -> dict:
    """Changes options of the compilation cache and returns what they were."""
    before = {}
    for name, value in settings:
        before[name] = getattr(jax.config, name)
        jax.config.update(name, value)
    compilation_cache.reset_cache()  # it reads its options once
    return before


def figure(samples) -> dict:
    samples = np.asarray(samples, float)
    return {name: float(f"{f(samples):.5g}") for name, f in (("median", np.median), ("low", np.min), ("high", np.max))}


def failure(error: Exception) -> dict:
    return {"error": f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"[:200]}


def column(name: str, context: int) -> str:
    return f"{name}, {context}"


def blank(plan: Plan) -> dict:
    return {"machine": None, "columns": {column(name, context): {} for name in plan.models for context in plan.contexts}}


def save(report: dict, output: Path, suffixes=(".json", ".md")) -> None:
    output.parent.mkdir(parents=True, exist_ok=True)
    texts = {".json": json.dumps(report, indent=2), ".md": markdown(report)}
    for suffix in suffixes:
        Path(f"{output}{suffix}").write_text(texts[suffix] + "\n")


def markdown(report: dict) -> str:
    """The report as a page: medians, with the least and the greatest of the repeats."""
    machine, columns = report["machine"], report["columns"]
    where = f"{machine['device']} ({machine['platform']}), jax {machine['jax']}" if machine else "not measured"
    table = [["", "goal", *columns]]
    table += [[title, goal, *(cell(figures, key) for figures in columns.values())] for key, title, goal in rows()]
    table.insert(1, ["---"] * len(table[0]))
    return "\n".join(
        [
            "# GPU report",
            "",
            "Written by `scripts/gpu_report.py`: random weights, bfloat16, batch 1; the number beside a model is the capacity of its cache,",
            "nearly filled. Medians, with the least and the greatest of the repeats. Ratios come from alternating runs.",
            "",
            f"Device: {where}. Copy bandwidth, read and written: {cell(report, 'copy_gb_s')} GB/s.",
            "",
            *("| " + " | ".join(line) + " |" for line in table),
        ]
    )


def cell(figures: dict, key: str) -> str:
    found = figures.get(key) or figures.get(key.split("/")[0]) or figures.get("all")
    if found is None:
        return "not measured"
    if "error" in found:
        return found["error"].replace("|", "\\|")
    low, median, high = (f"{found[name]:.4g}" for name in ("low", "median", "high"))
    return median if low == high else f"{median} ({low} to {high})"


if __name__ == "__main__":
    sys.exit(main())
