"""Heads grown with their target: they predict what the small head predicts for the small target."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.grown import LARGE, TOKENS
from support.head_cases import MADE, parameters
from support.models import TINY, language_model, random_head, tiny_model
from support.published_heads import DEEP, write

from specjax import LanguageModel, load_drafter
from specjax.errors import ConfigError
from specjax.heads import (
    KINDS,
    AssistantConfig,
    BlockConfig,
    Eagle3Config,
    EagleConfig,
    Head,
    HydraConfig,
    MedusaConfig,
    MtpConfig,
)
from specjax.tools.grow.grow import grow_head
from specjax.tools.grow.shape import grow_config

pytestmark = pytest.mark.usefixtures("small_programs")

LAYERS = TINY.replace(num_layers=1, num_heads=2, num_kv_heads=1, head_dim=8, intermediate_size=40, norm_eps=1e-3)
NARROW = LAYERS.replace(hidden_size=24, num_layers=2, qk_norm=True, family="qwen3")
EAGLE3 = Eagle3Config(LAYERS, 32, 2, (0, 1, 2), 40)
BLOCK = BlockConfig(LAYERS, 32, 2, (1, 2), 60, block_size=5)
HEADS = {
    "eagle": EagleConfig(LAYERS, 2),
    "eagle, no bias": EagleConfig(LAYERS, 2, bias=False, own_embedding=True, first_norm=True),
    "eagle3": EAGLE3,
    "eagle3, 3.1": dataclasses.replace(EAGLE3, fc_norm=True, norm_output=True),
    "eagle3, narrow": dataclasses.replace(EAGLE3, layers=NARROW, own_embedding=True),
    "eagle3, parallel": dataclasses.replace(EAGLE3, norm_before_fc=True, norm_before_residual=True, mask_token=60),
    "mtp": MtpConfig(LAYERS, 2, modules=2),
    "mtp, own": MtpConfig(LAYERS, 2, False, True, True, True, True),
    "medusa": MedusaConfig(32, 2, 61, 2, 2),
    "hydra": HydraConfig(32, 2, 61, 2, 2, head_bias=True),
    "hydra, prefix": HydraConfig(32, 2, 61, 2, own_embedding=True, layers=TINY.replace(num_layers=1)),
    "block": BLOCK,
    "block, own": dataclasses.replace(
        BLOCK, layers=NARROW, own_embedding=True, own_head=True, markov_rank=4, markov="rnn", confidence=True
    ),
    "block, gated": dataclasses.replace(BLOCK, markov_rank=4, markov="gated", confidence=True, confidence_markov=True),
}
USUAL = {name: kind.usual(TINY, LAYERS) for name, kind in KINDS.items()}
WRITTEN = {config.kind for config in HEADS.values()}
HEADS |= {name: config for name, config in USUAL.items() if name not in WRITTEN and not config.part_not_grown}
FIRST_TIER = ("eagle3", "mtp")


def head_of(config) -> Head:
    head = random_head(KINDS[config.kind].module, config)
    if config.kind == "eagle3":  # the draft vocabulary is every token from 21 on
        head.draft_to_target[...] = jnp.full(config.draft_vocab_size, 21, jnp.int32)
    return Head(head, config, "head")


def predictions(head: Head, target: LanguageModel) -> list[np.ndarray]:
    """The logits of the head for three steps after a text, and the confidence of a block head."""
    return jax.device_get(_predictions(head.module, target.model, head.config))


@partial(jax.jit, static_argnums=2)
def _predictions(module, model, config) -> list[jax.Array]:
    N = TOKENS.shape[1] - 2
    tokens, positions = jnp.asarray(TOKENS), jnp.broadcast_to(jnp.arange(N), (2, N))
    mask = jnp.tril(jnp.ones((N, N), bool))
    taps = model(tokens[:, :N], positions, mask, taps=config.taps).taps
    if config.kind == "block":
        rows, read = module.context(taps, positions, jnp.float32), jnp.array([[7, 60, 60, 60]] * 2)
        seen = jnp.ones((4, N + 4), bool)
        out = module(model, read, N + jnp.zeros_like(read) + jnp.arange(4), None, seen, rows)
        code = None if module.markov is None else module.markov.codes(out.hidden, tokens[:, :4])
        sure = [] if module.confidence is None else [module.sure(out.hidden, tokens[:, :4])]
        return [module.logits(model, out.hidden, code), *sure]
    features = module.fuse(model, taps)
    if config.num_heads:
        hidden = module(model, tokens[:, 1 : N + 1], features, positions, mask).hidden[:, -1]
        return [module.logits(model, k, hidden, tokens[:, : k + 1]) for k in range(config.num_heads)]
    found = []
    for step in range(3):
        part = module.modules[min(step, config.modules - 1)]
        read = tokens[:, 1 + min(step, 1) : N + 1 + min(step, 1)]
        out = part(model, read, features, positions, mask)
        features = out.hidden
        found.append(part.logits(model, features))
    return found


def test_every_kind_of_head_grows():
    assert {config.kind for config in HEADS.values()} == KINDS.keys() - {"assistant"}


READERS = LAYERS.replace(mixers=(dataclasses.replace(LAYERS.layer(0).mixer, reads=0),))
UNKNOWN_PARTS = {
    "a path selector": dataclasses.replace(BLOCK, markov_rank=4, markov="selector", candidates=3),
    "convolutions": dataclasses.replace(BLOCK, conv_taps=2),
    "a refiner": dataclasses.replace(BLOCK, refiner_rank=4),
    "an assistant's reading of the target's cache": AssistantConfig(READERS, 32, 2),
}
NOT_GROWN = {
    "speculators-dflash2", "speculators-xpress", "dflash, 2", "dflash, xpress", "gemma4-assistant",
    "gemma4-assistant, clusters",
}  # fmt: skip
"""Published heads with such parts."""


@pytest.mark.parametrize("part", UNKNOWN_PARTS)
def test_a_head_with_a_part_that_growth_does_not_know_is_refused(part, pair, tmp_path):
    config = UNKNOWN_PARTS[part]
    head = Head(None, config, "given")  # its weights are not read
    with pytest.raises(ConfigError, match=f"given cannot grow: growth does not know {part}; use a head without it"):
        grow_head(head, pair[0], pair[1].config, tmp_path / "grown")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in FIRST_TIER else pytest.mark.slow) for name in HEADS]
)
def test_a_grown_head_predicts_the_same(name, pair, tmp_path):
    head = head_of(HEADS[name])
    config = grow_head(head, pair[0], pair[1].config, tmp_path / "head")
    grown = load_drafter(tmp_path / "head", pair[1])
    assert (config.target_layers, config.target_size, config.vocab_size) == (3, 60, 83)
    assert config.layers is None or (config.layers.num_heads, config.layers.intermediate_size) == (12, 60)
    for small, large in zip(predictions(head, pair[0]), predictions(grown, pair[1])):
        if small.shape[-1] == TINY.vocab_size:
            known = small > -1e20
            assert large[..., 61:].max() < small[known].min() - 50  # new tokens
            small, large = small[known].reshape(2, -1), large[..., :61][known].reshape(2, -1)
        np.testing.assert_allclose(large, small, rtol=1e-4, atol=1e-4 * np.abs(small).max())


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in MADE if case not in NOT_GROWN])
def test_a_grown_head_keeps_its_layout(case, tmp_path):
    head = load_drafter(write(tmp_path / "head", *MADE[case]()), DEEP)
    like = DEEP.config.replace(**LARGE | dict(num_layers=8))
    config = grow_head(head, DEEP, like, tmp_path / "grown")
    target = language_model(tiny_model(config=grow_config(DEEP.config, like, "deep")))
    grown = load_drafter(tmp_path / "grown", target)
    assert (grown.layout, grown.config.kind, grown.config.taps) == (head.layout, config.kind, config.taps)
    assert parameters(grown.module).keys() == parameters(head.module).keys()


def test_a_head_that_the_shape_cannot_hold_is_refused(pair, tmp_path):
    wide = head_of(dataclasses.replace(EAGLE3, layers=LAYERS.replace(intermediate_size=61)))
    normed = head_of(dataclasses.replace(EAGLE3, layers=NARROW, own_embedding=True, fc_norm=True))
    for head, words in ((wide, "intermediate_size is 60; it must be at least 61"), (normed, "hidden_size is 24")):
        with pytest.raises(ConfigError, match=f"^head cannot grow.*{words}"):
            grow_head(head, pair[0], pair[1].config, tmp_path / "head")
        assert not (tmp_path / "head").exists()
