"""The options of families that are not Llama's: written back as they are read, and refused by name."""

import json

import pytest
from support.golden import ENCODER_DECODERS, FILES, read_file

from specjax.checkpoints import unlisted_options
from specjax.checkpoints.config import from_hf, to_hf
from specjax.checkpoints.families import FAMILIES
from specjax.errors import ConfigError, SpecjaxWarning

RAW = {path.stem: read_file(path.stem)[1] for path in FILES + ENCODER_DECODERS}
"""The config.json of each recorded model, as transformers wrote it."""

BY_FAMILY = {raw["model_type"]: raw for raw in RAW.values()}

REFUSED = [
    ("gemma2", dict(attention_bias=True)),
    ("gemma3_text", dict(attn_logit_softcapping=50.0)),
    ("gemma3_text", dict(use_bidirectional_attention=True)),
    ("gemma4_text", dict(enable_moe_block=True)),
    ("gemma4_text", dict(num_kv_shared_layers=4)),
    ("phi3", dict(mlp_bias=True)),
    ("phi3", dict(interpolate_factor=2)),
    ("phi3", dict(rope_parameters=dict(partial_rotary_factor=0.45))),
    ("phi3", dict(rope_parameters=dict(rope_type="longrope", short_factor=[1.0], long_factor=[2.0]))),
    ("glm4", dict(hidden_act="relu")),
    ("gpt2", dict(scale_attn_by_inverse_layer_idx=True)),
    ("gpt2", dict(reorder_and_upcast_attn=True)),
    ("gpt_neox", dict(hidden_act="quick_gelu")),
    ("opt", dict(layer_norm_elementwise_affine=False)),
    ("starcoder2", dict(norm_type="rms_norm")),
    ("mixtral", dict(num_experts_per_tok=9)),
    ("mixtral", dict(attention_bias=True)),
    ("qwen3_moe", dict(decoder_sparse_step=0)),
    ("gpt_oss", dict(rope_parameters=None)),
    ("deepseek_v3", dict(rope_interleave=False)),
    ("deepseek_v3", dict(first_k_dense_replace=1, n_group=3)),
    ("deepseek_v3", dict(first_k_dense_replace=1, n_group=8)),
    ("deepseek_v3", dict(first_k_dense_replace=1, topk_group=5)),
    ("deepseek_v3", dict(first_k_dense_replace=1, num_experts_per_tok=5)),
    ("deepseek_v3", dict(rope_parameters=dict(rope_type="linear", factor=2.0))),
    ("deepseek_v3", dict(qk_rope_head_dim=3)),
    ("deepseek_v3", dict(scoring_func="softmax")),
    ("deepseek_v2", dict(norm_topk_prob=True)),
    ("deepseek_v2", dict(topk_method="noaux_tc")),
    ("glm4_moe", dict(n_group=4)),
    ("glm4_moe_lite", dict(mlp_layer_types=["dense"])),
    ("glm4_moe_lite", dict(partial_rotary_factor=0.5)),
    ("qwen3_next", dict(num_experts_per_tok=513)),
    ("qwen3_5_text", dict(attn_output_gate=False)),
    ("qwen3_5_text", dict(layer_types=["linear_attention"] * 3)),
    ("qwen3_5_text", dict(linear_num_key_heads=3)),
    ("smollm3", dict(no_rope_layers=[1])),
    ("smollm3", dict(no_rope_layers=[1, 2])),
    ("llama4_text", dict(no_rope_layers=[1])),
    ("llama4_text", dict(layer_types=["sliding_attention"] * 3)),
    ("llama4_text", dict(attention_chunk_size=None)),
    ("llama4_text", dict(num_experts_per_tok=5)),
    ("llama4_text", dict(attn_temperature_tuning="on")),
    ("granite", dict(logits_scaling=0.0)),
    ("phi", dict(qk_layernorm=True)),
    ("cohere", dict(use_qk_norm=True)),
    ("cohere2", dict(sliding_window=None)),
    ("granitemoehybrid", dict(layer_types=["mamba", "linear_attention", "mamba"])),
    ("granitemoehybrid", dict(layer_types=["attention", "sliding_attention", "mamba"])),
    ("granitemoehybrid", dict(mamba_n_heads=5)),
    ("granitemoehybrid", dict(mamba_n_groups=3)),
    ("granitemoehybrid", dict(mamba_d_head=3)),
    ("granitemoehybrid", dict(time_step_limit=[0.0, 0.1])),
    ("granitemoehybrid", dict(layer_types=["attention"])),
    ("granitemoehybrid", dict(num_local_experts=4)),
    ("mamba2", dict(num_heads=6)),
    ("mamba2", dict(n_groups=3)),
    ("mamba2", dict(time_step_limit=[0.0, 0.1])),
    ("nemotron_h", dict(n_groups=3)),
    ("nemotron_h", dict(layers_block_type=None)),
    ("nemotron_h", dict(layers_block_type=["mlp", "moe"])),
    ("nemotron_h", dict(layers_block_type=None, hybrid_override_pattern="M-X")),
    ("nemotron_h", dict(num_hidden_layers=4)),
    ("gptj", dict(rotary_dim=3)),
    ("gptj", dict(rotary_dim=10)),
    ("exaone4", dict(layer_types=["sliding_attention"] * 2)),
    ("ernie4_5_moe", dict(use_bias=True)),
    ("ernie4_5_moe", dict(moe_k=5)),
    ("arcee", dict(hidden_act="xielu")),
    ("apertus", dict(hidden_act="relu2")),
    ("apertus", dict(rope_parameters=None)),
    ("minimax_m2", dict(rotary_dim=10)),
    ("minimax_m2", dict(num_experts_per_tok=5)),
    ("falcon", dict(alibi=True)),
    ("falcon", dict(parallel_attn=False)),
    ("bloom", dict(apply_residual_connection_post_layernorm=True)),
    ("lfm2", dict(layer_types=["conv"] * 3)),
    ("lfm2", dict(layer_types=["conv"])),
    ("hunyuan_v1_dense", dict(rope_parameters=dict(rope_type="dynamic", alpha=-1.0))),
    ("hunyuan_v1_dense", dict(use_cla=True)),
    ("t5", dict(feed_forward_proj="gated-tanh")),
    ("t5", dict(decoder_start_token_id=32)),
    ("t5", dict(is_encoder_decoder=False)),
    ("t5", dict(relative_attention_max_distance=4)),
    ("bart", dict(normalize_before=True)),
    ("bart", dict(add_final_layer_norm=True)),
    ("bart", dict(decoder_start_token_id=None)),
    ("bart", dict(forced_bos_token_id=[1, 2])),
    ("bart", dict(encoder_attention_heads=3)),
]


def test_every_family_is_recorded():
    assert BY_FAMILY.keys() == FAMILIES.keys(), "record a tiny model, see scripts/golden/make_golden.py"


@pytest.mark.parametrize("name", RAW)
def test_options_are_written_as_they_are_read(name: str):
    config = from_hf(RAW[name])
    assert from_hf(json.loads(json.dumps(to_hf(config)))) == config


@pytest.mark.parametrize("family, options", REFUSED, ids=lambda x: x if isinstance(x, str) else next(iter(x)))
def test_options_that_are_not_supported_are_refused_by_name(family: str, options: dict):
    with pytest.raises(ConfigError, match="|".join(options)) as error:
        from_hf(BY_FAMILY[family] | options, "a/config.json")
    assert str(error.value).startswith("a/config.json: ") and "\n" not in str(error.value)


@pytest.mark.parametrize("family", FAMILIES)
def test_an_option_that_transformers_does_not_know_is_ignored_with_a_warning(family: str):
    raw = BY_FAMILY[family]
    with pytest.warns(SpecjaxWarning, match="ignores options 'surprise', 'is_llama_config'") as warned:
        assert from_hf(raw | dict(surprise=0.5, is_llama_config=True, rope_interleaved=False)) == from_hf(raw)
    assert len(warned) == 1


@pytest.mark.parametrize("family", FAMILIES)
def test_an_option_that_transformers_alone_knows_is_refused(family: str, monkeypatch):
    raw = BY_FAMILY[family]
    monkeypatch.setattr(unlisted_options, "fields_in_transformers", lambda model_type: frozenset({"new_scale"}))
    with pytest.raises(ConfigError, match="'new_scale' = 0.5 is not supported"):
        from_hf(raw | dict(new_scale=0.5))


def test_fields_in_transformers_have_their_other_names():
    fields = unlisted_options.fields_in_transformers("gpt2")
    assert {"n_embd", "hidden_size", "scale_attn_weights"} <= fields and "is_llama_config" not in fields
