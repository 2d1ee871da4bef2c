"""Drafters for tests of compiled loops: one of each family, with heads that hold shapes instead of arrays."""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx

from specjax import Drafter, ModelConfig
from specjax.core.tree import expansion
from specjax.drafters import (
    Adaptive,
    BlockDrafter,
    Cascade,
    DraftModel,
    DraftTree,
    DynamicTree,
    Eagle3,
    EarlyExit,
    Hydra,
    Lookahead,
    Merged,
    Mtp,
    Ngram,
    PartialCascade,
    Plain,
    Suffix,
    Switch,
    TokenRecycling,
)
from specjax.heads import KINDS, BlockConfig, Eagle3Config, HydraConfig, MtpConfig
from specjax.loop.drafter import TrainedHead

from .program import TARGET, Program

PART = dict(attention_sinks=3, draft_window=9, cache_chunks=3, chunk_size=5, num_speculative_tokens=2)


def make_drafters(config: ModelConfig) -> dict[str, Drafter]:
    """One drafter of each family for a target of two layers; ``config`` is that of one layer of a head."""
    E, V = config.hidden_size, config.vocab_size
    eagle3 = Eagle3Config(config, E, 2, (0, 1, 2), draft_vocab_size=V - 32)
    return {
        "none": Plain(),
        "ngram": Ngram(3),
        "draft_model": DraftModel(3),
        "switch": Switch((Ngram(2), DraftModel(2))),
        "ema": Adaptive(DraftModel(1)),
        "suffix": Suffix(2, 3),
        "token_recycling": TokenRecycling(expansion((2, 1)), 2),
        "lookahead": Lookahead(window=5, ngram_size=3, guesses=2),
        "tree": DraftTree(expansion((2, 1))),
        "dynamic_tree": DynamicTree(4, 2, 2),
        "merged": Merged(2),
        "cascade": Cascade(2, 2),
        "early_exit": EarlyExit(1, 2),
        "eagle3": Eagle3(6, 3, 2, head=eagle3),
        "one pass": Eagle3(7, 3, 2, head=dataclasses.replace(eagle3, mask_token=1)),
        "mtp": Mtp(3, head=MtpConfig(config, target_layers=2, modules=2)),
        "hydra": Hydra(head=HydraConfig(E, 2, V, num_heads=2, layers=config)),
        "block": BlockDrafter(head=BlockConfig(config, E, 2, (0, 1), mask_token=1, block_size=4)),
        "partial_cascade": PartialCascade(**PART, inner_speculative_tokens=2),
    }


STRUCTURES = ("ngram", "draft_model", "dynamic_tree", "early_exit", "eagle3", "block")
"""One method of each structure: a look-up, a chain, a tree, the target's own layers, a head's tree, and a block."""


SHARES = {
    "sharded": ("none", "suffix", "token_recycling", "ema", "partial_cascade"),
    "apart": ("switch", "merged", "mtp", "tree"),
    "tpu": ("lookahead", "cascade", "hydra", "one pass"),
}
"""The other drafters, each with one of the tests that compile for several devices. A compilation takes 10 to 30 s."""


ONE_LAYER = dict(num_layers=1, num_kv_heads=1)
DRAFTERS = make_drafters(TARGET.replace(**ONE_LAYER, intermediate_size=160, head_dim=48))
"""One of each family, for the models ``program.TARGET`` and ``program.DRAFT``."""


def compile_loop(drafter: Drafter, batch: int, **options) -> Program:
    """The compiled loop of a drafter, a trained head included; ``options`` are those of ``Program``."""
    draft = _abstract_head(drafter.head) if isinstance(drafter.needs, TrainedHead) else None
    return Program(drafter, batch, draft=draft, **options)


def _abstract_head(config) -> nnx.Module:
    """A head that holds shapes instead of arrays."""
    return nnx.eval_shape(lambda: KINDS[config.kind].module(config, jax.random.key(0), jnp.bfloat16))
