"""Compiled programs of the loop for abstract models, and how many programs a call compiles."""

from functools import partial

import jax
import jax.numpy as jnp

from specjax.checkpoints.tensors import abstract_decoder
from specjax.core.sampling import random_keys, sampling_params
from specjax.core.state import Requests
from specjax.loop import decode
from specjax.loop.drafter import Models
from specjax.loop.prefill import prefill
from specjax.rules.acceptance import resolve

from .models import TINY

# No product of axes below is shared by a cache leaf, a weight and an activation, so that sizes tell them apart.
TARGET = TINY.replace(vocab_size=320, hidden_size=128, intermediate_size=192, head_dim=32)
DRAFT = TINY.replace(vocab_size=320, hidden_size=96, intermediate_size=160, num_layers=1, num_kv_heads=1, head_dim=48)
CAPACITY = 176
MOVES = ("copy", "convert", "transpose")
"""Instructions that move data without computing anything."""


class Program:
    """``decode.run`` compiled for abstract models: bfloat16 weights, and a cache of ``dtype``.

    Attributes:
      target, given, state: its arguments, as shapes; ``draft`` is the draft model in ``given``, or the head.
      caches: elements of each cache leaf, the draft's included.
      weights: elements of each weight matrix.
    """

    def __init__(
        self,
        drafter,
        batch,
        dtype="float32",
        models=(TARGET, DRAFT),
        capacity=CAPACITY,
        device=None,
        options=None,
        draft=None,
    ):
        placed = lambda tree: jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=device), tree)
        self.target, self.draft = (placed(abstract_decoder(config, jnp.bfloat16)) for config in models)
        self.draft = self.draft if draft is None else placed(draft)
        if isinstance(drafter.needs, Models) and not drafter.needs.is_one:
            self.draft = (self.draft,) * max(drafter.needs.least, 1)
        self.given = drafter.parameters(self.draft, models[0].vocab_size)
        requests = jax.eval_shape(lambda: make_blank_requests(batch, capacity))
        read = partial(prefill, drafter=drafter, chunk=16, dtype=dtype)
        self.state = placed(jax.eval_shape(read, self.target, self.given, requests))
        run = jax.jit(partial(decode.run, drafter=drafter, rule=resolve("auto", drafter.drawn)), donate_argnums=2)
        lowered = run.lower(self.target, self.given, self.state, placed(jax.ShapeDtypeStruct((), jnp.int32)))
        self.compiled = lowered.compile(compiler_options=options)
        self.text = self.compiled.as_text()
        self.cache_leaves = [leaf for leaf in jax.tree.leaves(self.state) if leaf.ndim == 4]
        self.caches = {leaf.size for leaf in self.cache_leaves}
        self.weights = {leaf.size for leaf in jax.tree.leaves((self.target, self.draft)) if leaf.ndim == 2}


def make_blank_requests(batch: int, capacity: int) -> Requests:
    """Requests of one blank token each."""
    return Requests(
        tokens=jnp.zeros((batch, capacity), jnp.int32),
        lengths=jnp.ones(batch, jnp.int32),
        sampling=sampling_params(batch),
        keys=random_keys(0, batch),
        limit=jnp.full(batch, 100, jnp.int32),
        stop_ids=jnp.full((batch, 1), -1, jnp.int32),
    )


def count_compilations(generator, *args, **options) -> int:
    """How many programs a call compiles."""
    count = []
    listen = lambda event, *_, **__: count.append(event) if event.endswith("backend_compile_duration") else None
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        generator(*args, **options)
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    return len(count)
