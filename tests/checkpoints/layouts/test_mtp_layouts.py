"""Multi-token prediction: variants of the layouts, and several modules."""

import pytest
from support.head_cases import config_of
from support.published_heads import DEEP, MTP, E, mtp, normal, write

from specjax import load_drafter
from specjax.errors import CheckpointError


def test_options_that_vary(tmp_path):
    of = lambda made, **raw: config_of(tmp_path, made, **raw)
    heads = {name: of(lambda name=name: mtp(name)) for name in MTP}
    assert [heads[x].norm_output for x in MTP] == [True, False, True]
    assert [heads[x].hidden_first for x in MTP] == [False, False, True]
    assert [heads[x].own_head for x in MTP] == [False, True, False] and all(x.normed_features for x in heads.values())
    assert of(lambda: mtp("deepseek", mtp_norm_output=True)).norm_output


def test_every_module_is_whole(tmp_path):
    raw, tensors = mtp("mimo", 3)
    del tensors["model.mtp_layers.2.input_proj.weight"], tensors["model.mtp_layers.1.self_attn.q_proj.bias"]
    tensors |= {"model.mtp_layers.1.final_layernorm.weight": normal(E + 1)}
    with pytest.raises(CheckpointError) as error:
        load_drafter(write(tmp_path / "a", raw, tensors), DEEP)
    for fault in (
        "2.input_proj.weight is missing",
        "1.self_attn.q_proj.bias is missing",
        f"1.final_layernorm.weight has shape ({E + 1},)",
    ):
        assert fault in str(error.value)
