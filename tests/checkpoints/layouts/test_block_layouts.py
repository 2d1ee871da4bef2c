"""Block heads: which tokens their places predict, by the conventions of DFlash, DeepSpec and
JetSpec."""

import pytest
from support.head_cases import config_of, same_heads
from support.published_heads import DEEP, E, dflash, dflash2, dspark, normal, write

from specjax import load_drafter, save_head


def test_places_of_a_block(tmp_path):
    """Which tokens the places say, by the conventions of DFlash, DeepSpec and JetSpec."""
    of = lambda made, **raw: config_of(tmp_path, made, **raw)
    nested = dict(mask_token_id=60, target_layer_ids=[1, 3])
    config = of(dflash)
    assert (config.from_root, config.causal, config.block_size, config.drafts, config.mask_token) == (
        False,
        False,
        8,
        7,
        60,
    )
    assert config.layers.windows == (None, 16)
    config = of(dspark)
    assert (config.from_root, config.block_size, config.drafts, config.markov_rank, config.confidence) == (
        True,
        7,
        7,
        4,
        True,
    )
    assert config.confidence_markov
    raw, tensors = dspark(confidence_head_with_markov=False)
    config = of(lambda: (raw, tensors | {"confidence_head.proj.weight": normal(1, E)}))
    assert config.confidence and not config.confidence_markov
    config = of(dflash, dflash_config=nested | dict(causal_head=True))
    assert config.causal and not config.from_root and config.drafts == 7
    config = of(dflash, dflash_config=nested | dict(causal_head=True, draft_shift=True))
    assert config.causal and config.from_root and config.drafts == 7
    raw, tensors = dspark()
    inside = (
        nested
        | {x: raw.pop(x) for x in ("markov_rank", "markov_head_type", "enable_confidence_head")}
        | dict(projector_type="dspark")
    )
    config = of(lambda: (raw | dict(dflash_config=inside), tensors))  # SpecForge's DSpark keeps DFlash's places
    assert not config.from_root and config.markov_rank == 4 and config.drafts == 6


def test_places_of_dflash_2_see_each_other_as_the_file_says(tmp_path):
    """Without a word in the file layers with an attention window are causal, as vLLM has it."""
    of = lambda **raw: config_of(tmp_path, dflash2, **raw)
    for given, causal, windows in ((False, False, False), (True, True, False), (None, False, True)):
        config = of(is_causal=given) if given is not None else config_of(tmp_path, silent)
        assert (config.causal, config.causal_windows, config.from_root, config.drafts) == (causal, windows, False, 7)
    assert (config.markov, config.markov_rank, config.candidates) == ("selector", 4, 5)
    assert (config.conv_taps, config.conv_group, config.refiner_rank) == (2, 16, 0)
    head = load_drafter(write(tmp_path / "a", *silent()), DEEP)
    save_head(head, tmp_path / "b")
    assert same_heads(head, load_drafter(tmp_path / "b", DEEP))


def silent():
    raw, tensors = dflash2()
    del raw["is_causal"]
    return raw, tensors


@pytest.mark.parametrize(
    "options", [dict(causal_head=True), dict(causal_head=True, draft_shift=True), dict(sample_from_anchor=True)]
)
def test_variants_of_a_block_are_written(tmp_path, options):
    raw, tensors = dflash(dflash_config=dict(mask_token_id=60, target_layer_ids=[1, 3]) | options)
    head = load_drafter(write(tmp_path / "a", raw, tensors), DEEP)
    save_head(head, tmp_path / "b")
    assert same_heads(head, load_drafter(tmp_path / "b", DEEP))
