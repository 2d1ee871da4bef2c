"""Medusa and Hydra heads: shapes by their tensors."""

import pytest
from support.head_cases import config_of, same_heads
from support.published_heads import DEEP, E, V, hydra_prefixed, medusa, normal, write

from specjax import load_drafter
from specjax.errors import CheckpointError


def test_shapes_are_those_of_the_tensors(tmp_path):
    assert config_of(tmp_path, medusa).num_heads == 5 and config_of(tmp_path, lambda: medusa(2)).num_layers == 2


def test_embeddings_of_a_prefix_layer_that_nothing_reads(tmp_path):
    """Hydra++ writes its prefix layer as a whole language model."""
    raw, tensors = hydra_prefixed()
    one = load_drafter(write(tmp_path / "a", raw, tensors), DEEP)
    unread = {
        "prefix_embeding_layer.embed_tokens.weight": normal(V, E),
        "prefix_embeding_layer.layers.0.self_attn.rotary_emb.inv_freq": normal(4),
    }
    assert same_heads(one, load_drafter(write(tmp_path / "b", raw, tensors | unread), DEEP))
    del tensors["prefix_embeding_layer.layers.0.mlp.down_proj.weight"]
    with pytest.raises(CheckpointError, match=r"prefix_embeding_layer\.layers\.0\.mlp\.down_proj\.weight"):
        load_drafter(write(tmp_path / "c", raw, tensors), DEEP)


def test_a_missing_head_between_others(tmp_path):
    raw, tensors = medusa()
    del tensors["2.0.linear.weight"], tensors["2.0.linear.bias"], tensors["2.1.weight"]
    with pytest.raises(CheckpointError, match=r"2\.0\.linear\.bias is missing.*2\.1\.weight is missing"):
        load_drafter(write(tmp_path / "a", raw, tensors), DEEP)
