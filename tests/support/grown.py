"""Models in larger shapes, and the small models that they must agree with."""

import numpy as np

from specjax import LanguageModel
from specjax.checkpoints.config import read_config
from specjax.checkpoints.tensors import load_model
from specjax.tools.grow.grow import grow_model
from support.models import TINY, byte_tokenizer, language_model

TOKENS = np.random.default_rng(0).integers(0, TINY.vocab_size, (2, 24))

LARGE = dict(
    vocab_size=83,
    hidden_size=60,
    intermediate_size=60,
    num_layers=3,
    num_heads=12,
    num_kv_heads=4,
    head_dim=24,
    max_position_embeddings=512,
)
"""A shape larger than ``TINY`` in everything. Groups of three heads instead of two."""


def grow(model, directory, **changes) -> LanguageModel:
    """The model in another shape, read again from its directory."""
    grow_model(language_model(model), model.config.replace(**changes), directory)
    return LanguageModel(load_model(directory), read_config(directory), byte_tokenizer(), str(directory))
