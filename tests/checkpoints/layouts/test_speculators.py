"""The types of speculators 0.9. scripts/golden/check_speculators.py compares them with the package
itself."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from support.head_cases import config_of, parameters, same_heads
from support.published_heads import DEEP, KNOWN, E, L, V, normal, write
from support.published_speculators import spec_dflash, spec_dspark, spec_mtp, spec_peagle, speculators

from specjax import load_drafter, save_head
from specjax.errors import CheckpointError, ConfigError
from specjax.heads import KINDS, BlockConfig, Eagle3Config, Head, MtpConfig

LAYERS = DEEP.config.replace(num_layers=1, family="qwen3", qk_norm=True, windows=(None,))


def test_p_eagle(tmp_path):
    config = config_of(tmp_path, spec_peagle)
    assert (config.kind, config.mask_token, config.taps, config.draft_vocab_size) == ("eagle3", 60, (1, 2, 4), KNOWN)
    assert config_of(tmp_path, speculators).mask_token is None


def test_multi_token_prediction(tmp_path):
    """Trained on hidden states before the target's final norm; hands on normed ones; the depth is
    the target's."""
    config = config_of(tmp_path, spec_mtp)
    assert (config.target_layers, config.layers.num_layers, config.modules) == (L, 1, 1)
    assert (config.normed_features, config.norm_output, config.hidden_first) == (False, True, False)
    assert not config.own_embedding and not config.own_head and config.layers.qk_norm


def test_blocks(tmp_path):
    """Layers are named by inputs; DSpark's places predict the token after them, DFlash's their
    own."""
    of = lambda made, *args, **raw: config_of(tmp_path, lambda **more: made(*args, **more), **raw)
    config = of(spec_dflash)
    assert (config.taps, config.block_size, config.drafts, config.from_root) == ((2, 4), 8, 7, False)
    assert not config.own_head and config.draft_vocab_size == V and not config.markov_rank
    assert of(spec_dflash, sample_from_anchor=True).drafts == 8
    config = of(spec_dspark, "rnn")
    assert (config.block_size, config.drafts, config.from_root, config.markov, config.markov_rank) == (
        7,
        7,
        True,
        "rnn",
        4,
    )
    assert config.confidence and config.confidence_markov and config.own_head and config.draft_vocab_size == KNOWN
    assert not of(spec_dspark, sample_from_anchor=False).from_root


@pytest.mark.parametrize(
    "windows, non_causal, causal, causal_windows",
    [
        ((False, False), False, False, False),
        ((True, True), False, True, False),
        ((True, True), True, False, False),
        ((True, False), False, False, True),
        ((True, False), True, False, False),
    ],
)
def test_layers_with_windows_are_causal_unless_the_file_says_otherwise(
    tmp_path, windows, non_causal, causal, causal_windows
):
    raw, tensors = spec_dflash(V, windows, sliding_window_non_causal=non_causal)
    head = load_drafter(write(tmp_path / "a", raw, tensors), DEEP)
    assert (head.config.causal, head.config.causal_windows) == (causal, causal_windows)
    save_head(head, tmp_path / "b")
    written = json.loads((tmp_path / "b/config.json").read_text())
    assert written["sliding_window_non_causal"] == non_causal and same_heads(load_drafter(tmp_path / "b", DEEP), head)


def test_copies_of_the_targets_tensors_are_not_read(tmp_path):
    for made in (spec_peagle, spec_mtp, spec_dflash, spec_dspark):
        raw, tensors = made()
        copies = {"verifier_lm_head.weight": normal(V, E), "verifier_norm.weight": normal(E)}
        head = load_drafter(write(tmp_path / "a", raw, tensors), DEEP)
        assert same_heads(load_drafter(write(tmp_path / "b", raw, tensors | copies), DEEP), head)


def test_embeddings_in_the_file_are_the_heads_own(tmp_path):
    raw, tensors = spec_dflash()
    tables = {"embed_tokens.weight": normal(V, E), "lm_head.weight": normal(V, E)}
    head = load_drafter(write(tmp_path / "a", raw, tensors | tables), DEEP)
    found = parameters(head.module)
    np.testing.assert_array_equal(found["embed"], tables["embed_tokens.weight"])
    np.testing.assert_array_equal(found["head"], tables["lm_head.weight"])


@pytest.mark.parametrize(
    "made", [spec_peagle, lambda: spec_dflash(KNOWN), spec_dspark], ids=["peagle", "dflash", "dspark"]
)
def test_a_wrong_mapping_is_refused(tmp_path, made):
    raw, tensors = made()
    for spoiled, named in (
        ({"d2t": tensors["d2t"] + 60}, "outside the vocabulary"),
        ({"d2t": -np.arange(KNOWN)}, "two tokens to one"),
        ({"t2d": ~tensors["t2d"]}, "different tokens"),
    ):
        with pytest.raises(CheckpointError, match=named):
            load_drafter(write(tmp_path / "a", raw, tensors | spoiled), DEEP)
    del tensors["d2t"]
    with pytest.raises(CheckpointError, match="d2t is missing"):
        load_drafter(write(tmp_path / "a", raw, tensors), DEEP)


BLOCK = BlockConfig(LAYERS, E, L, (2, 4), 60)
MTP = MtpConfig(LAYERS, L, norm_output=True)
LLAMA = DEEP.config.replace(num_layers=1)
CANNOT_HOLD = {
    "layers of llama": (
        "speculators-dflash",
        dataclasses.replace(BLOCK, layers=LLAMA),
        "layers of qwen3, not of llama",
    ),
    "causal": (
        "speculators-dflash",
        dataclasses.replace(BLOCK, causal=True),
        "causal layers only with attention windows",
    ),
    "markov": (
        "speculators-dflash",
        dataclasses.replace(BLOCK, markov_rank=2),
        "with no further parts, and this one has a Markov head; use dflash",
    ),
    "several modules": ("speculators-mtp", dataclasses.replace(MTP, modules=2), "holds one module"),
    "several layers": (
        "speculators-mtp",
        dataclasses.replace(MTP, layers=LAYERS.replace(num_layers=2, windows=())),
        "no module that has several layers",
    ),
    "raw hidden states": (
        "speculators-mtp",
        dataclasses.replace(MTP, norm_output=False),
        "no module that passes on raw",
    ),
    "order": (
        "speculators-mtp",
        dataclasses.replace(MTP, hidden_first=True),
        "no module that has the hidden state first",
    ),
    "no mask": ("speculators-peagle", Eagle3Config(LLAMA, E, L, (1, 2, 4), V), "P-EAGLE heads, which have a mask"),
    "few tokens": (
        "dflash",
        dataclasses.replace(BLOCK, own_head=True, draft_vocab_size=KNOWN),
        "no head with a draft vocabulary",
    ),
    "one window": (
        "dflash",
        dataclasses.replace(BLOCK, causal_windows=True),
        "no head with both causal and other layers",
    ),
}


@pytest.mark.parametrize("case", CANNOT_HOLD)
def test_a_layout_refuses_heads_that_it_cannot_hold(tmp_path, case):
    layout, config, named = CANNOT_HOLD[case]
    head = Head(KINDS[config.kind].module(config, jax.random.key(0)), config, "new")
    with pytest.raises(ConfigError, match=named) as error:
        save_head(head, tmp_path / "a", layout)
    assert layout in str(error.value) and "\n" not in str(error.value) and not (tmp_path / "a").exists()
