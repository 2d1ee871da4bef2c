"""EAGLE and EAGLE-3 heads: the layers they read, their variants, and their draft vocabulary."""

import numpy as np
import pytest
from support.head_cases import config_of, same_heads
from support.published_heads import DEEP, KNOWN, E, V, dflash, dspark, eagle, eagle3, normal, write
from support.published_speculators import speculators

from specjax import load_drafter, save_head
from specjax.errors import CheckpointError


def test_layers_are_named_by_outputs_or_inputs(tmp_path):
    of = lambda made, **raw: config_of(tmp_path, made, **raw).taps
    ids = "eagle_aux_hidden_state_layer_ids"
    assert of(eagle3) == (2, 3, 3)  # L // 2 and L - 3 are one for a target of 6
    assert of(eagle3, eagle_config={ids: [0, 2, 4], "use_aux_hidden_state": True}) == (1, 3, 5)
    assert of(eagle3, **{ids: [0, 2, 4]}) == (0, 2, 4)
    assert of(speculators) == (1, 2, 4) and of(speculators, **{ids: None}) == (2, 3, 3)
    assert of(dflash) == of(dspark) == (2, 4)


def test_options_that_vary(tmp_path):
    of = lambda made, **raw: config_of(tmp_path, made, **raw)
    assert of(eagle).bias and not of(eagle).first_norm and of(eagle).own_embedding
    flags = dict(norm_output=True, norm_before_residual=False)
    assert of(speculators, **flags).norm_output and not of(speculators, **flags).norm_before_residual
    assert of(speculators).norm_before_residual
    assert of(eagle3).layers.rope.theta == 5e5 and of(speculators).layers.rope.theta == 7e5
    nested = {k: v for k, v in speculators()[0]["transformer_layer_config"].items() if k != "rope_parameters"}
    assert of(speculators, transformer_layer_config=nested, rope_theta=9e5).layers.rope.theta == 9e5
    assert of(speculators, transformer_layer_config=nested | dict(rope_theta=8e5)).layers.rope.theta == 8e5


def test_a_whole_vocabulary_needs_no_mapping(tmp_path):
    raw, tensors = eagle3(draft_vocab_size=None)
    tensors = {k: v for k, v in tensors.items() if k not in ("d2t", "t2d")} | {"lm_head.weight": normal(V, E)}
    head = load_drafter(write(tmp_path / "a", raw, tensors), DEEP)
    assert head.config.draft_vocab_size == V and not np.any(head.module.draft_to_target[...])
    zeros = load_drafter(
        write(tmp_path / "b", raw, tensors | {"d2t": np.zeros(V, np.int64), "t2d": np.ones(V, bool)}), DEEP
    )
    save_head(zeros, tmp_path / "c")
    assert same_heads(zeros, head) and same_heads(zeros, load_drafter(tmp_path / "c", DEEP))
    with pytest.raises(CheckpointError, match="offsets"):  # token numbers, where offsets are meant
        load_drafter(write(tmp_path / "d", raw, tensors | {"d2t": np.arange(V)}), DEEP)


@pytest.mark.parametrize(
    "spoil, named",
    [
        (lambda d2t, t2d: (d2t + np.arange(KNOWN) + 30, t2d), "outside the vocabulary"),
        (lambda d2t, t2d: (-np.arange(KNOWN), t2d), "two tokens to one"),
        (lambda d2t, t2d: (d2t - 100, t2d), "outside the vocabulary"),
        (lambda d2t, t2d: (d2t, ~t2d), "different tokens"),
        (lambda d2t, t2d: (d2t, t2d[1:]), "t2d has the shape .60,., not .61,."),
    ],
)
def test_a_wrong_mapping_is_refused(tmp_path, spoil, named):
    raw, tensors = eagle3()
    tensors["d2t"], tensors["t2d"] = spoil(tensors["d2t"], tensors["t2d"])
    with pytest.raises(CheckpointError, match=named):
        load_drafter(write(tmp_path / "a", raw, tensors), DEEP)
