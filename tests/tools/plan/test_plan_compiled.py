"""Plans by the compilers of TPU and GPU, which need no device (second tier)."""

import json
import math

import jax
import jax.numpy as jnp
import pytest
from support.models import TINY

from specjax import make_mesh
from specjax.checkpoints.config import to_hf
from specjax.drafters import DraftModel, EarlyExit, Plain
from specjax.tools.design.draft_latency import fit, plan_samples
from specjax.tools.design.search import make_shape
from specjax.tools.plan.abstract_arguments import abstract
from specjax.tools.plan.devices import DEVICES, compile_only, parse_device
from specjax.tools.plan.plan import capacity_for, tokens_a_round
from specjax.tools.plan.program import compile_loop, compile_prefill
from specjax.tools.plan.program_figures import figures_of
from specjax.tools.plan.round_time import plan_round
from specjax.tools.plan.settings import make_plan

SMALL = TINY.replace(
    vocab_size=32000, hidden_size=2048, intermediate_size=8192, num_layers=7, num_heads=16, num_kv_heads=8, head_dim=128,
    max_position_embeddings=4096,
)  # fmt: skip
"""Layers of 134 MB: few of them fill the fast memory of a TPU."""
SMALL_DRAFT = 2 * 32000 * 2048 + (32 * 128 + 16 * 128 + 3 * 8192) * 2048 + 3 * 2048
"""Parameters with one layer: two tables, the layer's matrices, and three norms."""
COMPILERS = {"v5e:2x2": "libtpu", "h100:2": "jax_plugins.xla_cuda13"}


@pytest.mark.slow
@pytest.mark.parametrize("device", COMPILERS)
def test_a_plan_by_the_compiler(device, tmp_path):
    """Keys and relations of a plan; a round moves at most 1.1 times the least."""
    pytest.importorskip(COMPILERS[device], reason="needs the compiler; scripts/test.sh --all installs it")
    for name, layers in (("target", 7), ("draft", 1)):
        (tmp_path / f"{name}.json").write_text(json.dumps(to_hf(SMALL.replace(num_layers=layers))))
    settings = dict(model=str(tmp_path / "target.json"), draft=[str(tmp_path / "draft.json")], device=device)
    planned = make_plan(settings | dict(options=dict(num_speculative_tokens=3)))
    assert json.loads(json.dumps(planned)) == planned
    is_gpu, devices = device.startswith("h100"), 2 if device == "h100:2" else 4
    assert planned["fits"] and planned["mesh"] == dict(data=1, model=devices, nodes=1)
    assert planned["memory_bytes"]["draft"] == 2 * SMALL_DRAFT
    assert planned["cache_copies"] == 0
    for key in ("", "plain_"):
        moved, least = planned[f"{key}bytes_per_round"], planned[f"{key}minimum_bytes_per_round"]
        assert least <= moved <= 1.1 * least
    counts = {(one["kind"], one["count"]) for one in planned["collectives"]}
    assert ("all-reduce", 2 * 7) in counts
    assert (planned["launches_per_round"] is not None) == is_gpu
    if is_gpu:
        assert 10 < planned["launches_per_layer"] <= 24 + 2 * 2  # an all-reduce is a kernel, and parts two others
    bandwidth = DEVICES[device[:4].rstrip(":")].bandwidth
    assert planned["seconds_per_round"] > planned["bytes_per_round"] / bandwidth
    for alpha, speed in planned["tokens_per_second"].items():
        assert speed == pytest.approx(tokens_a_round(float(alpha), 3) / planned["seconds_per_round"])
        assert planned["speedup"][alpha] == pytest.approx(speed * planned["plain_seconds_per_token"])


@pytest.mark.slow
def test_a_deep_model_has_the_figures_that_short_ones_foretell():
    """A round extended from few layers against the compiled round of all nine, on TPUs, whose fast memory holds few."""
    device = "v5e:2x2"
    pytest.importorskip(COMPILERS[device], reason="needs the compiler; scripts/test.sh --all installs it")
    name, shape = parse_device(device)
    mesh = make_mesh(model=math.prod(shape), devices=list(compile_only(name, shape)))
    sizes = dict(batch=1, capacity=512, dtype=jnp.dtype("bfloat16"))
    deep = SMALL.replace(num_layers=9)
    program = abstract(deep, Plain(), (), mesh, **sizes)
    whole = figures_of(program, *compile_loop(program))
    foretold = plan_round(deep, Plain(), (), mesh, DEVICES[name], **sizes).figures
    for figure in ("weights", "cache", "least", "operations"):
        assert getattr(foretold, figure) == pytest.approx(getattr(whole, figure))
    assert foretold.moved == pytest.approx(whole.moved, rel=0.02)
    assert foretold.launches == pytest.approx(whole.launches, rel=0.02)
    assert {key: round(count) for key, count in foretold.collectives.items()} == whole.collectives


@pytest.mark.slow
def test_no_values_of_a_long_cache_are_padded():
    """With the capacity of plans a GPU moves the least; 256 positions less, and it copies the values of the layer."""
    pytest.importorskip("jax_plugins.xla_cuda13", reason="needs the compiler; scripts/test.sh --all installs it")
    mesh = make_mesh(model=1, devices=list(compile_only("h100", (1,))))
    capacity, sizes, moved = capacity_for(131072, 0), dict(batch=1, dtype=jnp.dtype("bfloat16")), {}
    for positions in (capacity, capacity - 256):
        program = abstract(SMALL.replace(num_layers=1), Plain(), (), mesh, capacity=positions, **sizes)
        figures = figures_of(program, *compile_loop(program))
        moved[positions] = figures.moved - figures.least
    values = SMALL.num_kv_heads * SMALL.head_dim * 2 * capacity
    assert moved[capacity] < 0.3 * values and moved[capacity - 256] - moved[capacity] == pytest.approx(
        2 * values, rel=0.05
    )


@pytest.mark.slow
def test_the_state_lies_where_the_prefill_puts_it():
    """The shardings that plans assume are those with which the compiled prefill returns the state."""
    pytest.importorskip("jax_plugins.xla_cuda13", reason="needs the compiler; scripts/test.sh --all installs it")
    mesh = make_mesh(data=2, model=4, devices=list(compile_only("h100", (8,))))
    small = TINY.replace(vocab_size=320, hidden_size=128, intermediate_size=192, head_dim=32)
    sizes = dict(batch=2, capacity=256, dtype=jnp.dtype("bfloat16"))
    for drafter, drafts in ((DraftModel(3), (small,)), (EarlyExit(1), ())):
        program = abstract(small, drafter, drafts, mesh, **sizes)
        found = compile_prefill(program).output_shardings
        for leaf, sharding in zip(jax.tree.leaves(program.state), jax.tree.leaves(found), strict=True):
            assert leaf.size == 0 or leaf.sharding.is_equivalent_to(sharding, leaf.ndim)  # an empty array lies nowhere


@pytest.mark.slow
def test_the_time_of_a_draft_by_its_shape():
    """A shape that the fit has not seen, against its own compiled program."""
    device = "h100:1"
    pytest.importorskip(COMPILERS["h100:2"], reason="needs the compiler; scripts/test.sh --all installs it")
    target = TINY.replace(vocab_size=4096, hidden_size=512, num_heads=8, num_kv_heads=4, head_dim=64)
    shape = lambda layers, width, ratio=3: make_shape(target, layers, width, ratio)
    seen = [(shape(1, 128), 512), (shape(1, 512), 512), (shape(2, 256), 512), (shape(2, 512), 128)]
    seen += [(shape(3, 128), 512), (shape(3, 256), 128)]
    latency = fit(plan_samples(seen, 1, device), 1)
    (sample,) = plan_samples([(unseen := shape(1, 384, 2), 512)], 1, device)
    assert latency(unseen, 512) == pytest.approx(sample.seconds, rel=0.1)
    assert latency.error < 0.1
