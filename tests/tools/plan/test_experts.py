"""Plans of models with experts: more nodes read more experts."""

import dataclasses

import jax.numpy as jnp
import pytest
from support.mixtures import MIXTURES
from support.models import TINY

from specjax.drafters import Ngram, Plain
from specjax.models.feed_forwards import ExpertsConfig
from specjax.parallel import make_mesh
from specjax.tools.plan import hlo
from specjax.tools.plan.abstract_arguments import abstract
from specjax.tools.plan.plan import plan
from specjax.tools.plan.program import compile_loop, products_of
from specjax.tools.plan.program_figures import figures_of
from specjax.tools.plan.report import table

SIZES = dict(batch=2, capacity=256, dtype=jnp.dtype("bfloat16"))


def expected(config: ExpertsConfig, nodes: int) -> float:
    return config.count * (1 - (1 - config.chosen / config.count) ** nodes)


@pytest.mark.parametrize(
    "axes", [dict(model=2), *(pytest.param(axes, marks=pytest.mark.slow) for axes in ({}, dict(data=2)))], ids=str
)
def test_a_round_reads_the_expected_experts(axes):
    """Eight nodes against two, by hand: each device has its part of the experts' units, and its rows."""
    config, mesh = MIXTURES["mixtral"], make_mesh(**axes)
    plain, drafted = (products_of(abstract(config, drafter, (), mesh, **SIZES)) for drafter in (Plain(), Ngram(3)))
    experts, rows = config.mlps[0], 2 // axes.get("data", 1)
    expert = 2 * 3 * experts.width * config.hidden_size / axes.get("model", 1)
    more = config.num_layers * (expected(experts, 4 * rows) - expected(experts, rows)) * expert
    assert drafted.bytes - plain.bytes == pytest.approx(more, rel=1e-3)


WIDE = TINY.replace(
    vocab_size=4096, hidden_size=512, intermediate_size=512, num_heads=4, num_kv_heads=2, head_dim=128,
    mlps=(ExpertsConfig(32, 4, 256),) * 2,
)  # fmt: skip


@pytest.mark.slow
def test_the_compiler_for_tpus_copies_no_expert():
    """The compiled loop reads the slices of the chosen experts as they lie, so the round moves little more than the least bytes."""
    pytest.importorskip("libtpu", reason="needs the compiler for TPUs")
    from specjax.tools.plan.devices import compile_only

    program = abstract(WIDE, Ngram(3), (), make_mesh(devices=list(compile_only("v5e", (1,)))), **SIZES)
    compiled, work = compile_loop(program)
    figures, experts = figures_of(program, compiled, work), WIDE.mlps[0]
    matrix = experts.width * WIDE.hidden_size
    assert hlo.moved(compiled.as_text(), {matrix, experts.count * matrix}, ("copy", "transpose")) == []
    assert figures.experts == pytest.approx(expected(experts, 8), rel=1e-3)
    assert figures.least < figures.moved < 1.2 * figures.least
    every = dataclasses.replace(experts, chosen=experts.count).count_weights(WIDE.hidden_size) * 2 * 2
    assert figures.moved < every


@pytest.mark.slow
def test_a_plan_says_how_many_experts_a_round_reads():
    pytest.importorskip("libtpu", reason="needs the compiler for TPUs")
    planned = plan(WIDE, Ngram(3), device="v5e:1", batch=1, max_length=200)
    assert planned["experts_per_layer"] == pytest.approx(
        {"all": 32, "plain": 4.0, "round": expected(WIDE.mlps[0], 4)}, rel=1e-3
    )
    assert planned["bytes_per_round"] > 2 * planned["plain_bytes_per_round"]
    labels = [str(cell) for cell in table(planned | {"method": "ngram"}).columns[0].cells]
    assert "experts that a layer reads" in labels
