"""Heads that are known and not supported, unknown ones, and heads of another target: refused in one
line."""

from types import SimpleNamespace

import pytest
from support.head_cases import MADE
from support.published_heads import (
    DEEP,
    E,
    L,
    V,
    assistant,
    dflash,
    dflash2,
    dspark,
    eagle,
    eagle3,
    hydra,
    mtp,
    normal,
    parallel,
    write,
    xpress,
)
from support.published_speculators import spec_dflash2, spec_xpress, speculators

from specjax import load_drafter
from specjax.errors import CheckpointError, ConfigError


def changed(made, change):
    raw, tensors = made()
    change(raw, tensors)
    return raw, tensors


REFUSED = {
    **{
        f"speculators {kind}": (
            lambda kind=kind: speculators(speculators_model_type=kind),
            f"the speculators type '{kind}'",
        )
        for kind in ("lilicorr", "hydra")
    },
    "DFlash 2 without a rank": (
        lambda: changed(dflash2, lambda raw, t: raw["dflash_config"].pop("selector_rank")),
        "selector_rank is missing",
    ),
    "DFlash 2 with scaled logits": (
        lambda: changed(dflash2, lambda raw, t: raw["dflash_config"].update(output_multiplier=0.2)),
        "output_multiplier",
    ),
    "DFlash 2 of few tokens": (lambda: spec_dflash2(draft_vocab_size=20), "needs an output matrix|path selector"),
    "an assistant with inputs of layers": (
        lambda: changed(assistant, lambda raw, t: raw["text_config"].update(hidden_size_per_layer_input=4)),
        "hidden_size_per_layer_input must be 0",
    ),
    "an assistant of another family": (
        lambda: changed(assistant, lambda raw, t: raw["text_config"].update(model_type="gemma3_text")),
        "text_config.model_type must be gemma4_text",
    ),
    "an assistant with its own output matrix": (lambda: assistant(tie_word_embeddings=False), "tie_word_embeddings"),
    "an assistant's unknown option": (lambda: assistant(block_size=4), "block_size"),
    "XPress without passes": (lambda: xpress(xpress_num_passes=None), "xpress_num_passes is null"),
    "XPress of another form": (lambda: spec_xpress(xpress_backbone="dflash2"), "xpress_backbone"),
    "P-EAGLE without a mask": (lambda: eagle3(parallel_drafting=True), "mask_token_id is missing"),
    "ReDrafter": (lambda: ({}, {"rnn_u.weight": normal(2, 2)}), "ReDrafter"),
    "latent": (
        lambda: changed(
            eagle3, lambda raw, t: t.update({"midlayer.self_attn.kv_a_proj_with_mqa.weight": normal(2, 2)})
        ),
        "latent",
    ),
    "quantised": (lambda: changed(eagle, lambda raw, t: t.update({"fc.weight_scale_inv": normal(2)})), "quantised"),
    "one layer": (lambda: eagle3(eagle_config=dict(use_aux_hidden_state=False)), "use_aux_hidden_state"),
    "eagle option": (lambda: eagle3(eagle_config=dict(surprise=1)), "surprise"),
    "option": (lambda: eagle(hidden_act="gelu"), "hidden_act"),
    "nested option": (
        lambda: dflash(dflash_config=dict(mask_token_id=60, target_layer_ids=[1], attention_sinks=4)),
        "attention_sinks",
    ),
    "outer option": (lambda: speculators(surprise=1), "surprise"),
    "architecture": (lambda: eagle3(model_type="gpt_oss"), "gpt_oss"),
    "no layer ids": (lambda: dflash(dflash_config=dict(mask_token_id=60)), "target_layer_ids"),
    "no mask": (lambda: dflash(dflash_config=dict(target_layer_ids=[1, 3])), "mask_token_id is missing"),
    "another Markov": (lambda: dspark(markov_head_type="fir"), "'fir'"),
    "shift": (
        lambda: dflash(dflash_config=dict(mask_token_id=60, target_layer_ids=[1, 3], draft_shift=True)),
        "draft_shift",
    ),
    "other Hydra": (lambda: hydra(hydra_head_arch="cross-attn"), "'cross-attn'"),
    "earlier states": (lambda: hydra(hidden_state_offset=1), "hidden_state_offset 1"),
    "ungrounded": (lambda: hydra(grounded_heads=False), "grounded_heads"),
    "experts": (
        lambda: changed(
            lambda: mtp("deepseek"),
            lambda raw, t: t.update({f"model.layers.{L}.mlp.experts.0.up_proj.weight": normal(2, 2)}),
        ),
        "mixture of experts",
    ),
    "MTP latent": (
        lambda: changed(
            lambda: mtp("deepseek"),
            lambda raw, t: t.update(
                {
                    "model.embed_tokens.weight": normal(V, E),
                    f"model.layers.{L}.self_attn.kv_a_proj_with_mqa.weight": normal(2, 2),
                }
            ),
        ),
        "latent",
    ),
    "several modules": (
        lambda: mtp("mtp", num_nextn_predict_layers=2),
        "'mtp' holds one module of multi-token prediction, not 2",
    ),
    "several layers": (
        lambda: mtp("deepseek", mtp_num_hidden_layers=2),
        "'deepseek' holds modules of one decoder layer, not 2",
    ),
    "another module": (
        lambda: mtp("deepseek", 2, num_nextn_predict_layers=1),
        rf"num_nextn_predict_layers is 1.* further module model\.layers\.{L + 1};",
    ),
    "a third module": (
        lambda: mtp("mimo", 3, num_nextn_predict_layers=2),
        r"num_nextn_predict_layers is 2.* further module model\.mtp_layers\.2;",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_known_and_not_supported_is_refused_by_name(tmp_path, case):
    made, named = REFUSED[case]
    with pytest.raises(ConfigError, match=named) as error:
        load_drafter(write(tmp_path / "a", *made()), DEEP)
    assert "\n" not in str(error.value) and str(tmp_path) in str(error.value)


def test_what_is_not_known_is_named(tmp_path):
    with pytest.raises(CheckpointError, match=r"StrangeModel; tensors a\.weight, b\.weight"):
        load_drafter(
            write(tmp_path / "a", dict(architectures=["StrangeModel"]), {"a.weight": normal(2), "b.weight": normal(2)}),
            DEEP,
        )


@pytest.mark.parametrize("layout", [case for case in MADE if "," not in case or case == "hydra, prefix"])
@pytest.mark.parametrize(
    "changes, named", [(dict(hidden_size=64), "width is 32, not 64"), (dict(vocab_size=99), "vocabulary is 61, not 99")]
)
def test_heads_for_another_target_are_refused(tmp_path, layout, changes, named):
    other = SimpleNamespace(model=DEEP.model, config=DEEP.config.replace(**changes), name="other")
    with pytest.raises(CheckpointError, match=f"another target than 'other': .*{named}") as error:
        load_drafter(write(tmp_path / "a", *MADE[layout]()), other)
    assert "\n" not in str(error.value)


def test_layers_that_the_target_does_not_have(tmp_path, target):
    for made, named in (
        (dflash, "number of layers is 6, not 2"),
        (lambda: mtp("mtp"), "number of layers is 6, not 2"),
        (eagle3, "it reads layer -1, and the target has 2 layers"),
        (speculators, "it reads layer 4, and the target has 2 layers"),
    ):
        with pytest.raises(CheckpointError, match=named):
            load_drafter(write(tmp_path / "a", *made()), target)
    with pytest.raises(CheckpointError, match="mask token 61"):
        load_drafter(write(tmp_path / "a", *dspark(mask_token_id=V)), DEEP)
    with pytest.raises(CheckpointError, match="mask token 61"):
        load_drafter(write(tmp_path / "a", *parallel(mask_token_id=V)), DEEP)
    raw, tensors = eagle3(hidden_size=16, target_hidden_size=E)
    with pytest.raises(ConfigError, match="16 wide and brings no embeddings of its own, and its target is 32 wide"):
        load_drafter(write(tmp_path / "a", raw, tensors), DEEP)
