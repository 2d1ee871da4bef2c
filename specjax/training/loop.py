"""The training loop: optax steps over deterministic batches, orbax checkpoints, exact resume, a log of JSON lines."""

import json
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ..errors import NumericsError
from ..parallel import sharding
from .checkpoints import Checkpoints, alone_in, told

LOG = "log.jsonl"
"""The name of the log in a run's directory."""


def fit(
    model: nnx.Module,
    loss: Callable[..., jax.Array],
    batches: Callable[[int], Any],
    rule: optax.GradientTransformation,
    steps: int,
    directory: Path,
    extra: tuple = (),
    report: Callable[[int, nnx.Module], dict] = lambda step, model: {},
    every: int = 100,
    *,
    mesh: Mesh | None = None,
    renew: Callable[[int, nnx.Module], None] = lambda step, model: None,
    name: Callable[[int], str] = lambda step: "",
    pieces: int = 1,
) -> nnx.Module:
    """Minimises ``loss(model, batch, *extra)`` for ``steps`` steps; returns the trained model. Only what is an ``nnx.Param`` is trained.

    Writes ``log.jsonl``, a line for each step, and checkpoints into ``directory``. A run that finds some there goes on from the last whole
    one, and gives, bit for bit, what it would have given without the interruption.

    Args:
      batches: the batch of a step, a pytree of numpy arrays, the first axis of each over windows.
      extra: what the loss reads and does not train; on the mesh already, if there is one.
      report: figures to log at each checkpoint.
      every: steps between checkpoints.
      mesh: devices, see ``parallel.make_mesh``: batches are split over "data", parameters over "model".
      renew: called with the step and the model at the beginning and after each checkpoint, before the next batch is asked for.
      name: what the batch of a step is, for the message where a loss is not finite.
      pieces: in how many parts the windows of a step are computed, one after the other: what is in memory is of one.

    Raises NumericsError where a loss is not finite, StorageError where the disk is full, and CheckpointError where the directory is in use
    or holds another training. The last checkpoint is then good, and so it is after Ctrl-C.
    """
    directory = Path(directory).resolve()
    graph, params, rest = nnx.split(model, nnx.Param, ...)
    params, rest = placed(params, mesh), jax.tree.map(jnp.copy, rest)  # updates take over their buffers, and the model is the caller's

    update = step_of(graph, loss, rule, pieces)
    with _on(mesh), alone_in(directory), Checkpoints(directory) as checkpoints, _Bar(steps) as show:
        state = jax.jit(rule.init)(params)
        start, (params, state) = checkpoints.restored((params, state))
        renew(start, nnx.merge(graph, params, rest))
        log, began = _Log(directory / LOG, start), time.perf_counter()
        for step in range(start, steps):
            batch = batches(step)
            params, state, value, norm = update(params, state, rest, shared(batch, mesh), extra)
            record = {"step": step + 1, "loss": float(value), "gradient_norm": float(norm)}
            if not np.isfinite([record["loss"], record["gradient_norm"]]).all():
                raise NumericsError(
                    f"loss {record['loss']}, gradient {record['gradient_norm']} at step {step + 1}{name(step)}; "
                    f"the last checkpoint in {directory} is good; try a lower rate"
                )
            now = time.perf_counter()
            record["tokens_per_second"] = round(sum(x.size for x in jax.tree.leaves(batch) if np.ndim(x) > 1) / (now - began), 1)
            began = now
            if (step + 1) % every == 0 or step + 1 == steps:
                checkpoints.save(step + 1, (params, state))
                trained = nnx.merge(graph, params, rest)
                record |= report(step + 1, trained)
                renew(step + 1, trained)
                began = time.perf_counter()
                print(f"step {step + 1}/{steps}", *(f"{key} {_short(x)}" for key, x in record.items() if key != "step"), file=sys.stderr)
            log.write(record)
            show(record)
    return nnx.merge(graph, params, rest)


def step_of(graph: nnx.GraphDef, loss: Callable[..., jax.Array], rule: optax.GradientTransformation, pieces: int = 1) -> Callable:
    """One step, compiled: ``(params, state, rest, batch, extra)`` to the next parameters and state of the optimizer, whose buffers it takes
    over, the loss before the step and the norm of its gradient."""

    @jax.jit(donate_argnums=(0, 1))
    def update(params, state, rest, batch, extra):
        of_part = lambda part: jax.value_and_grad(lambda p: loss(nnx.merge(graph, p, rest), part, *extra))(params)
        value, gradients = of_part(batch) if pieces == 1 else _mean(of_part, batch, pieces)
        updates, state = rule.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, value, optax.tree.norm(gradients)

    return update


def _mean(function: Callable, batch, pieces: int):
    """The mean of ``function`` over equal parts of a batch; what has no windows is in all of them."""
    split = {True: lambda x: x.reshape(pieces, -1, *x.shape[1:]), False: lambda x: jnp.broadcast_to(x, (pieces, *x.shape))}
    parts = jax.tree.map(lambda x: split[jnp.ndim(x) > 0](x), batch)
    first = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(function, jax.tree.map(lambda x: x[0], parts)))
    total, _ = jax.lax.scan(lambda total, part: (jax.tree.map(jnp.add, total, function(part)), None), first, parts)
    return jax.tree.map(lambda x: x / pieces, total)


def placed(params: nnx.State, mesh: Mesh | None) -> nnx.State:
    """Copies of parameters, split over the mesh by ``parallel.RULES``."""
    copy = lambda param: jnp.copy(param[...]) if mesh is None else jax.device_put(jnp.copy(param[...]), sharding(param, mesh))
    return nnx.from_flat_state([(path, param.replace(copy(param))) for path, param in nnx.to_flat_state(params)])


def shared(batch, mesh: Mesh | None):
    """A batch on the devices, its first axis split over "data". Every process has all of it and puts up its own part."""

    def put(x):
        x = np.asarray(x)
        if mesh is None:
            return jnp.asarray(x)
        spec = PartitionSpec("data") if x.ndim else PartitionSpec()
        return jax.make_array_from_callback(x.shape, NamedSharding(mesh, spec), lambda index: x[index])

    return jax.tree.map(put, batch)


class _Log:
    """One JSON object a line. What an interrupted run wrote after its last checkpoint is dropped: those steps are done again."""

    def __init__(self, path: Path, start: int):
        kept = [line for line in path.read_text().splitlines() if _step(line) <= start] if path.exists() else []
        with told(path.parent, path.name):
            path.write_text("".join(f"{line}\n" for line in kept))
        self.path = path

    def write(self, record: dict) -> None:
        if jax.process_index():
            return  # the first process writes for all
        with told(self.path.parent, self.path.name), self.path.open("a") as file:
            file.write(json.dumps(record) + "\n")


def _step(line: str) -> float:
    try:
        return json.loads(line)["step"]
    except (ValueError, KeyError):
        return float("inf")  # half a line


def _on(mesh: Mesh | None):
    return nullcontext() if mesh is None else jax.set_mesh(mesh)


class _Bar:
    """A progress bar on a terminal; entering gives what to tell each step's record."""

    def __init__(self, steps: int):
        columns = TextColumn("training"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}")
        self.progress = Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty())
        self.steps, self.last = steps, {}

    def __enter__(self):
        self.progress.__enter__()
        task = self.progress.add_task("", total=self.steps)

        def show(record: dict) -> None:
            self.last |= {key: value for key, value in record.items() if key not in ("step", "gradient_norm")}
            text = ", ".join(f"{key.replace('_per_second', '/s')} {_short(value)}" for key, value in self.last.items())
            self.progress.update(task, completed=record["step"], description=text)

        return show

    def __exit__(self, *error):
        return self.progress.__exit__(*error)


def _short(value) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
