"""The training loop: optax steps over deterministic batches, with checkpoints, resume and a log."""

import dataclasses
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ..core.read_files import parse_json, read_text
from ..errors import NumericsError
from ..parallel import sharding, use_mesh
from .saving import Checkpoints, lock, report_failure

M = TypeVar("M", bound=nnx.Module)

LOG = "log.jsonl"
"""The name of the log in the directory of a training."""


@dataclasses.dataclass(frozen=True)
class BatchSource:
    """The batches of a training.

    Attributes:
      read: returns the batch of a step, a pytree of numpy arrays whose first axes are windows.
      renew: is called with the step and the model before the first batch and after each checkpoint.
      describe: describes the batch of a step, for the error where a loss is not finite.
      pieces: the number of equal parts of a batch that are computed one after the other, to save
        memory.
    """

    read: Callable[[int], Any]
    renew: Callable[[int, Any], None] = lambda step, model: None
    describe: Callable[[int], str] = lambda step: ""
    pieces: int = 1


def fit(
    model: M,
    loss: Callable[..., jax.Array],
    batches: BatchSource,
    optimizer: optax.GradientTransformation,
    steps: int,
    directory: Path,
    extra: tuple = (),
    report: Callable[[int, M], dict] = lambda step, model: {},
    every: int = 100,
    *,
    mesh: Mesh | None = None,
) -> M:
    """Minimises ``loss(model, batch, *extra)`` and returns the trained model.

    Only ``nnx.Param`` variables are trained. ``directory`` gets ``log.jsonl``, one line for each
    step, and checkpoints. If there are checkpoints already, the run continues from the newest whole
    one. Its result equals, bit for bit, that of a run without interruption.

    Args:
      optimizer: the update of parameters.
      steps: the number of steps in all, counted from the first run.
      extra: arguments of the loss that are not trained. They must be on ``mesh`` already.
      report: returns the figures to log at each checkpoint.
      every: the number of steps between checkpoints.
      mesh: devices, see ``parallel.make_mesh``. Batches are split over its axis "data", parameters
        over its axis "model".

    Raises NumericsError where a loss is not finite, StorageError where the disk is full, and
    CheckpointError where the directory is in use or holds another training. After these errors and
    after Ctrl-C, the last checkpoint is good.
    """
    # 1. The parameters and the program of a step.
    directory = Path(directory).resolve()
    graph, params, rest = nnx.split(model, nnx.Param, ...)
    # Copies, because updates take over the buffers and the model is the caller's.
    params = place_parameters(params, mesh)
    rest = jax.tree.map(jnp.copy, rest)
    update = make_step(graph, loss, optimizer, batches.pieces)
    with use_mesh(mesh), lock(directory), Checkpoints(directory) as checkpoints, _Bar(steps) as show:
        # 2. The newest checkpoint.
        state = jax.jit(optimizer.init)(params)
        start, (params, state) = checkpoints.restore((params, state))
        batches.renew(start, nnx.merge(graph, params, rest))
        log = _Log(directory / LOG, start)
        # 3. The steps. A step between checkpoints ends with a line in the log.
        step_start = time.perf_counter()
        for step in range(start, steps):
            batch = batches.read(step)
            params, state, value, norm = update(params, state, rest, place_batch(batch, mesh), extra)
            record = {"step": step + 1, "loss": float(value), "gradient_norm": float(norm)}
            if not np.isfinite([record["loss"], record["gradient_norm"]]).all():
                raise NumericsError(
                    f"loss {record['loss']}, gradient {record['gradient_norm']} at step {step + 1}"
                    f"{batches.describe(step)}; the last checkpoint in {directory} is good; try a lower rate"
                )
            now = time.perf_counter()
            tokens = max(x.size for x in jax.tree.leaves(batch) if np.ndim(x) == 2 and x.dtype != bool)
            record["tokens_per_second"] = round(tokens / (now - step_start), 1)
            step_start = now
            if (step + 1) % every == 0 or step + 1 == steps:
                checkpoints.save(step + 1, (params, state))
                trained = nnx.merge(graph, params, rest)
                record |= report(step + 1, trained)
                batches.renew(step + 1, trained)
                step_start = time.perf_counter()
                figures = (f"{key} {_format(value)}" for key, value in record.items() if key != "step")
                print(f"step {step + 1}/{steps}", *figures, file=sys.stderr)
            log.write(record)
            show(record)
    return nnx.merge(graph, params, rest)


def make_step(
    graph: nnx.GraphDef, loss: Callable[..., jax.Array], optimizer: optax.GradientTransformation, pieces: int = 1
) -> Callable:
    """The compiled function of one step.

    It maps ``(params, state, rest, batch, extra)`` to the new parameters, the new state of the
    optimizer, the loss before the step, and the norm of its gradient. It donates the buffers of
    ``params`` and ``state``.
    """

    @jax.jit(donate_argnums=(0, 1))
    def update(params, state, rest, batch, extra):
        def differentiate(part):
            return jax.value_and_grad(lambda p: loss(nnx.merge(graph, p, rest), part, *extra))(params)

        value, gradients = differentiate(batch) if pieces == 1 else _mean_of_pieces(differentiate, batch, pieces)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, value, optax.tree.norm(gradients)

    return update


def _mean_of_pieces(function: Callable, batch, pieces: int):
    """The mean of ``function`` over equal parts of a batch. Every part has the batch's scalars."""

    def split(x):
        return x.reshape(pieces, -1, *x.shape[1:]) if jnp.ndim(x) else jnp.broadcast_to(x, pieces)

    parts = jax.tree.map(split, batch)
    shapes = jax.eval_shape(function, jax.tree.map(lambda x: x[0], parts))
    first = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    total, _ = jax.lax.scan(lambda total, part: (jax.tree.map(jnp.add, total, function(part)), None), first, parts)
    return jax.tree.map(lambda x: x / pieces, total)


def place_parameters(params: nnx.State, mesh: Mesh | None) -> nnx.State:
    """Copies of parameters, split over the mesh by ``parallel.RULES``."""

    def copy(param):
        value = jnp.copy(param[...])
        return param.replace(value if mesh is None else jax.device_put(value, sharding(param, mesh)))

    return nnx.from_flat_state([(path, copy(param)) for path, param in nnx.to_flat_state(params)])


def place_batch(batch, mesh: Mesh | None):
    """A batch on the devices, its first axis split over "data".

    Every process holds the whole batch and places its own part.
    """

    def put(x):
        x = np.asarray(x)
        if mesh is None:
            return jnp.asarray(x)
        spec = PartitionSpec("data") if x.ndim else PartitionSpec()
        return jax.make_array_from_callback(x.shape, NamedSharding(mesh, spec), lambda index: x[index])

    return jax.tree.map(put, batch)


class _Log:
    """The log, one JSON object a line.

    Lines after step ``start`` are dropped, because the resumed run does these steps again.
    """

    def __init__(self, path: Path, start: int):
        text = read_text(path, str(path), errors="ignore") if path.exists() else ""
        lines = [line for line in text.splitlines() if _step(line) <= start]
        with report_failure(path.parent, path.name):
            path.write_text("".join(f"{line}\n" for line in lines))
        self.path = path

    def write(self, record: dict) -> None:
        if jax.process_index():
            return  # The first process writes for all.
        with report_failure(self.path.parent, self.path.name), self.path.open("a") as file:
            file.write(json.dumps(record) + "\n")


def _step(line: str) -> float:
    try:
        return float(parse_json("the line", line)["step"])
    except (ValueError, KeyError, TypeError, IndexError, OverflowError):
        return float("inf")  # The line is not finished, or of another program.


class _Bar:
    """A progress bar on a terminal. ``with`` returns a function that shows the record of a step."""

    def __init__(self, steps: int):
        columns = (
            TextColumn("training"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.description}"),
        )
        console = Console(stderr=True)
        self.progress = Progress(*columns, console=console, transient=True, disable=not sys.stderr.isatty())
        self.steps = steps
        self.last = {}

    def __enter__(self):
        self.progress.__enter__()
        task = self.progress.add_task("", total=self.steps)

        def show(record: dict) -> None:
            self.last |= {key: value for key, value in record.items() if key not in ("step", "gradient_norm")}
            figures = (f"{key.replace('_per_second', '/s')} {_format(value)}" for key, value in self.last.items())
            text = ", ".join(figures)
            self.progress.update(task, completed=record["step"], description=text)

        return show

    def __exit__(self, *error):
        return self.progress.__exit__(*error)


def _format(value) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
