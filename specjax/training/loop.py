"""The training loop: optax steps over deterministic batches, orbax checkpoints, exact resume."""

import time
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from orbax.checkpoint import v1 as ocp
from rich.progress import Progress


def optimizer(peak: float, steps: int, warmup: int = 50, decay: float = 0.4) -> optax.GradientTransformation:
    """Muon for matrices and Adam for the rest; the rate rises, stays, and falls to zero over the last ``decay`` of the steps.

    Until the fall begins a run does not depend on ``steps``: a checkpoint may be resumed with another number.
    """
    hold = max(int(steps * (1 - decay)) - warmup, 0)
    rate = optax.join_schedules(
        [optax.linear_schedule(0, peak, warmup), optax.constant_schedule(peak), optax.linear_schedule(peak, 0, steps - warmup - hold)],
        [warmup, warmup + hold],
    )
    muon = optax.contrib.muon(
        rate,
        consistent_rms=0.2,
        ns_steps=4,
        preconditioning="aol",
        weight_decay=0.05,
        adam_b2=0.95,
        muon_weight_dimension_numbers=_matrices,
    )
    return optax.chain(optax.clip_by_global_norm(1.0), muon)


def _matrices(params):
    """Marks hidden matrices for Muon; embeddings, norms and biases stay with Adam."""
    dims = optax.contrib.MuonDimensionNumbers(reduction_axis=1, output_axis=0)
    return jax.tree_util.tree_map_with_path(lambda path, x: dims if x.ndim == 2 and "embed" not in str(path) else None, params)


def fit(
    model: nnx.Module,
    loss: Callable[..., jax.Array],
    batches: Callable[[int], np.ndarray],
    rule: optax.GradientTransformation,
    steps: int,
    directory: Path,
    extra: tuple = (),
    report: Callable[[int, nnx.Module], str] = lambda step, model: "",
    every: int = 100,
) -> nnx.Module:
    """Minimises ``loss(model, batch, *extra)`` for ``steps`` steps; returns the trained model.

    Args:
      batches: int32 windows of a step.
      directory: where checkpoints go, one every ``every`` steps. A run finds the newest there and goes on from it.
      report: text to print at each checkpoint.
    """
    graph, params = nnx.split(model)
    params = jax.tree.map(jnp.copy, params)  # updates take over their buffers, and the model is the caller's

    @jax.jit(donate_argnums=(0, 1))
    def update(params, state, batch, extra):
        value, gradients = jax.value_and_grad(lambda p: loss(nnx.merge(graph, p), batch, *extra))(params)
        updates, state = rule.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, value

    state = jax.jit(rule.init)(params)
    with ocp.training.Checkpointer(Path(directory).resolve()) as checkpoints, Progress() as bar:
        start = 0
        if checkpoints.latest is not None:
            start = checkpoints.latest.step
            params, state = checkpoints.load(start, (params, state))
        task = bar.add_task("training", total=steps, completed=start)
        losses, began = [], time.perf_counter()
        for step in range(start, steps):
            params, state, value = update(params, state, jnp.asarray(batches(step)), extra)
            losses.append(float(value))
            if not np.isfinite(losses[-1]):
                raise FloatingPointError(f"loss is {losses[-1]} at step {step}; the last checkpoint in {directory} is good")
            bar.update(task, advance=1, description=f"loss {losses[-1]:.3f}")
            if (step + 1) % every == 0 or step + 1 == steps:
                checkpoints.save(step + 1, (params, state))
                seconds = (time.perf_counter() - began) / len(losses)
                print(
                    f"step {step + 1}/{steps} loss {np.mean(losses):.4f} {seconds:.2f} s/step {report(step + 1, nnx.merge(graph, params))}",
                    flush=True,
                )
                losses, began = [], time.perf_counter()
    return nnx.merge(graph, params)
