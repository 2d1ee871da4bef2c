"""What blocks cost a round of an engine, by the compilers of GPUs and TPUs, without a device (second tier)."""

import pytest
from support.slot_rounds import SlotRounds
from test_gpu_compiler import LLAMA, SMALL

from specjax.drafters import DraftModel, Ngram, Plain
from specjax.tools.plan.devices import DEVICES

pytestmark = pytest.mark.slow

CAPACITY = 4096
TWO_LAYERS = LLAMA.replace(num_layers=2)
METHODS = {
    "none": (Plain(), (TWO_LAYERS,)),
    "ngram": (Ngram(5), (TWO_LAYERS,)),
    "draft_model": (DraftModel(5), (TWO_LAYERS, SMALL.replace(head_dim=128))),
}
"""Drafters, and the models of a round: a target with the widths of Llama-3-8B, and a draft whose keys have blocks too."""


@pytest.fixture(autouse=True)
def kernels(monkeypatch):
    monkeypatch.setenv("SPECJAX_KERNELS", "1")


def compile_rounds(device: str, drafter, models: tuple, rows: int) -> tuple[SlotRounds, SlotRounds]:
    """The rounds of fixed slots and of slots in blocks, which write their keys and values in place."""
    module = "libtpu" if DEVICES[device].platform == "tpu" else "jax_plugins.xla_cuda13"
    pytest.importorskip(module, reason="needs the device's compiler; scripts/test.sh --all installs it")
    both = [SlotRounds(device, models, drafter, rows, CAPACITY, in_blocks) for in_blocks in (False, True)]
    for rounds in both:
        assert rounds.program.memory_analysis().alias_size_in_bytes >= rounds.held
        assert rounds.bytes >= rounds.least
    return both[0], both[1]


@pytest.mark.parametrize(("device", "method", "rows"), [
    ("h100", "none", 1), ("h100", "ngram", 16), ("a100", "none", 16), ("a100", "draft_model", 1),
    ("v5e", "none", 1), ("v5e", "ngram", 16), ("v6e", "none", 16), ("v6e", "draft_model", 1),
])  # fmt: skip
def test_a_round_in_blocks_moves_the_bytes_of_fixed_slots(device: str, method: str, rows: int):
    """More by at most 2 % of weights, keys and values. No program copies or gathers the keys of a slot."""
    fixed, paged = compile_rounds(device, *METHODS[method], rows)
    assert fixed.moves() == paged.moves() == []
    assert paged.bytes - fixed.bytes <= 0.02 * fixed.least


def test_small_heads_on_a_tpu():
    """Rounds copy no pool. XLA:TPU changes the layout of arrays with heads of 64 when a launch begins and ends."""
    fixed, paged = compile_rounds("v5e", Plain(), (SMALL.replace(num_layers=2),), 16)
    assert fixed.moves(everywhere=False) == paged.moves(everywhere=False) == []
    assert len(paged.moves()) <= len(fixed.moves())
    assert paged.bytes - fixed.bytes <= 0.02 * fixed.least
