"""Kinds of heads: one file each, declared once, with a configuration that answers for every
kind."""

import dataclasses
import importlib
from pathlib import Path

import jax
import pytest
from flax import nnx
from support.models import TINY, tiny_model

import specjax.heads
from specjax.heads import (
    KINDS,
    AssistantConfig,
    BlockConfig,
    Eagle3Config,
    EagleConfig,
    HeadConfig,
    HydraConfig,
    MedusaConfig,
    MtpConfig,
)

LAYERS = TINY.replace(num_layers=1)
READS = dataclasses.replace(LAYERS.layer(0).mixer, reads=0)
CONFIGS = {name: kind.usual(TINY, LAYERS) for name, kind in KINDS.items()} | {
    "medusa": MedusaConfig(32, 2, 61, num_heads=3),
    "hydra": HydraConfig(32, 2, 61, num_heads=3, layers=LAYERS),
    "eagle": EagleConfig(LAYERS, 2),
    "eagle3": Eagle3Config(LAYERS, 32, 2, (0, 1, 2), 61),
    "mtp": MtpConfig(LAYERS, 2, modules=2),
    "block": BlockConfig(LAYERS, 32, 2, (0, 1), 60),
    "assistant": AssistantConfig(LAYERS.replace(mixers=(READS,)), 32, 2),
}
"""A configuration of each kind; of the usual shape where none is written here."""

DEFAULTS = dict(modules=1, mask_token=None, num_heads=0, reads_tokens=False, reads_cache=False)
FACTS = {
    "medusa": dict(num_heads=3),
    "hydra": dict(num_heads=3, reads_tokens=True),
    "eagle": {},
    "eagle3": {},
    "mtp": dict(modules=2),
    "block": dict(mask_token=60),
    "assistant": dict(reads_cache=True),
}
"""The values of the configurations above that are not those of ``DEFAULTS``."""


def test_every_file_with_a_kind_is_in_the_table():
    files = [path.stem for path in Path(specjax.heads.__file__).parent.glob("*.py") if path.stem != "__init__"]
    modules = [importlib.import_module(f"specjax.heads.{file}") for file in files]
    declared = [module.KIND for module in modules if hasattr(module, "KIND")]
    assert {kind.name: kind for kind in declared} == KINDS


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_configuration_has_every_field(kind):
    """No caller needs to ask whether a configuration has a field: the base class answers."""
    config = CONFIGS[kind]
    assert isinstance(config, HeadConfig) and config.kind == kind and hash(config) == hash(CONFIGS[kind])
    assert (config.vocab_size, config.target_size, config.target_layers) == (61, 32, 2)
    assert all(0 <= tap <= 2 for tap in config.taps)
    values = {name: getattr(config, name) for name in DEFAULTS}
    if kind in FACTS:
        assert (config.layers is None) == (kind == "medusa")
        assert values == DEFAULTS | FACTS[kind]
    assert all(type(getattr(KINDS[kind], name)) is bool for name in ("tuned_trees", "token_by_token"))


def test_usual_shapes_are_of_their_kind_and_fit_the_target():
    for name, kind in KINDS.items():
        config = kind.usual(TINY, LAYERS)
        assert type(config) is kind.config and config.kind == name
        assert (config.vocab_size, config.target_size, config.target_layers) == (61, 32, 2)


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_random_head_has_the_type_of_its_configuration(kind):
    """``with_dtype`` names the type of the weights that a random head of the configuration has."""
    config, made = CONFIGS[kind].with_dtype("bfloat16"), KINDS[kind].module
    module = nnx.eval_shape(lambda: made(config, jax.random.key(0)))
    assert {str(x.dtype) for x in jax.tree.leaves(nnx.state(module, nnx.Param))} == {"bfloat16"}
    assert config.with_dtype("float32") == CONFIGS[kind]
    assert len(module.modules) == config.modules
    assert (module.mask(tiny_model()) is None) == (config.mask_token is None or kind == "block")
