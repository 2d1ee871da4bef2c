"""A short training, its log, and comparisons of its files and heads."""

import json
from pathlib import Path

import jax
from flax import nnx

from specjax.training.recipe import make_recipe
from specjax.training.run import train

MTP = dict(
    kind="mtp",
    steps=4,
    batch=8,
    length=12,
    every=2,
    head={},
    loss={"steps": 2},
    optimizer={"name": "adamw", "warmup": 1},
)
"""A recipe of four steps with two checkpoints."""


def train_mtp(target, text, output, measure=lambda module: 1.5, **changes):
    """Trains by ``MTP`` with ``changes``. The measured acceptance length is made up."""
    return train(make_recipe(MTP | changes, "test"), target, [text], output, measure=measure)


def read_log(output) -> list[dict]:
    return [json.loads(line) for line in (output / "log.jsonl").read_text().splitlines()]


def all_files(directory) -> dict[Path, bytes]:
    return {p.relative_to(directory): p.read_bytes() for p in directory.rglob("*") if p.is_file() and p.name != ".lock"}


def are_equal(a, b) -> bool:
    """Whether two heads have the same parameters, bit for bit."""
    return all(
        (x == y).all() for x, y in zip(jax.tree.leaves(nnx.state(a.module)), jax.tree.leaves(nnx.state(b.module)))
    )
