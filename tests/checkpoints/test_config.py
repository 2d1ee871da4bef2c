"""Configurations: read both ways of writing them, write them back, refuse by name what is not supported."""

import json

import pytest

from specjax.checkpoints.config import from_hf, read_config, to_hf
from specjax.errors import CheckpointError, ConfigError
from specjax.models.config import Rope

LLAMA = dict(
    model_type="llama",
    vocab_size=32,
    hidden_size=16,
    intermediate_size=24,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=4,
    rms_norm_eps=1e-5,
)
LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192)


def test_old_and_new_rope_keys_say_the_same():
    old = from_hf(LLAMA | dict(rope_theta=5e5, rope_scaling=LLAMA3, max_position_embeddings=131072))
    new = from_hf(LLAMA | dict(rope_parameters=LLAMA3 | dict(rope_theta=5e5), max_position_embeddings=131072))
    assert old == new
    assert old.rope.theta == 5e5 and old.rope.factor == 8


def test_type_is_the_old_name_of_rope_type():
    assert from_hf(LLAMA | dict(rope_scaling=dict(type="linear", factor=2.0))).rope == Rope(rope_type="linear", factor=2.0)


def test_defaults_of_the_families():
    assert from_hf(LLAMA | dict(num_key_value_heads=None)).num_kv_heads == 4 and from_hf(LLAMA).head_dim == 4
    qwen2 = from_hf(LLAMA | dict(model_type="qwen2"))
    assert qwen2.qkv_bias and not qwen2.out_bias
    qwen3 = from_hf(LLAMA | dict(model_type="qwen3", head_dim=8))
    assert qwen3.qk_norm and not qwen3.qkv_bias and qwen3.head_dim == 8
    biased = from_hf(LLAMA | dict(attention_bias=True, mlp_bias=True))
    assert biased.qkv_bias and biased.out_bias and biased.mlp_bias


def test_what_a_config_leaves_out_is_what_transformers_takes():
    """Written down from the configuration classes of transformers 5.23."""
    few = (
        {k: v for k, v in LLAMA.items() if not k.startswith("num_")}
        | dict(num_hidden_layers=3)
        | dict(num_attention_heads=32, hidden_size=128)
    )
    mistral = from_hf(few | dict(model_type="mistral"))
    assert (mistral.num_kv_heads, mistral.windows, mistral.context) == (8, (4096,) * 3, 131072)
    for family in ("qwen2", "qwen3"):
        qwen = from_hf(few | dict(model_type=family, use_sliding_window=True, max_window_layers=2))
        assert (qwen.num_kv_heads, qwen.windows, qwen.context) == (32, (None, None, 4096), 32768)
    assert from_hf(few).context == 2048


def test_the_context_grows_with_the_stretch():
    yarn = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=64)
    assert from_hf(LLAMA | dict(rope_scaling=yarn, max_position_embeddings=64)).context == 256
    assert from_hf(LLAMA | dict(rope_scaling=yarn, max_position_embeddings=256)).context == 256
    assert from_hf(LLAMA | dict(rope_scaling=dict(rope_type="dynamic", factor=2.0), max_position_embeddings=64)).context == 128


def test_of_two_ways_to_say_rope_the_older_counts_as_in_transformers():
    both = dict(rope_scaling=dict(type="linear", factor=2.0), rope_parameters=dict(rope_type="default", rope_theta=5e5))
    assert from_hf(LLAMA | both).rope.rope_type == "linear"
    assert from_hf(LLAMA | dict(rope_scaling=dict(type="linear", rope_type="dynamic", factor=2.0))).rope.rope_type == "dynamic"


def test_windows():
    with pytest.raises(ConfigError, match="layer_types"):
        from_hf(LLAMA | dict(layer_types=["full_attention", "sliding_attention", "full_attention"]))
    assert from_hf(LLAMA | dict(model_type="mistral", sliding_window=7)).windows == (7, 7, 7)
    assert from_hf(LLAMA | dict(model_type="mistral", sliding_window=None)).windows == (None,) * 3
    qwen = LLAMA | dict(model_type="qwen2", sliding_window=7, max_window_layers=1)
    assert from_hf(qwen).windows == (None,) * 3
    assert from_hf(qwen | dict(use_sliding_window=True)).windows == (None, 7, 7)
    listed = dict(layer_types=["full_attention", "sliding_attention", "full_attention"])
    assert from_hf(qwen | listed | dict(use_sliding_window=True)).windows == (None, 7, None)


@pytest.mark.parametrize(
    "extra",
    [
        {},
        dict(rope_scaling=LLAMA3, tie_word_embeddings=True, bos_token_id=1, eos_token_id=[2, 3]),
        dict(rope_scaling=dict(rope_type="yarn", factor=4.0, mscale=1.0, mscale_all_dim=0.5, truncate=False)),
        dict(rope_scaling=dict(rope_type="dynamic", factor=2.0), attention_bias=True, mlp_bias=True, torch_dtype="bfloat16"),
        dict(model_type="mistral", sliding_window=5),
        dict(model_type="qwen2", sliding_window=5, use_sliding_window=True, max_window_layers=1),
        dict(model_type="qwen3", head_dim=8, attention_bias=True),
    ],
)
def test_written_and_read_again(extra):
    config = from_hf(LLAMA | extra)
    assert from_hf(json.loads(json.dumps(to_hf(config)))) == config


@pytest.mark.parametrize(
    "extra, named",
    [
        (dict(model_type="gpt2"), "gpt2"),
        (dict(hidden_act="gelu"), "hidden_act"),
        (dict(rope_scaling=dict(rope_type="longrope", factor=2.0)), "longrope"),
        (dict(rope_scaling=dict(rope_type="linear")), "factor"),
        (dict(rope_scaling=dict(rope_type="llama3", factor=8.0)), "low_freq_factor"),
        (dict(rope_parameters=dict(rope_theta=1e4, partial_rotary_factor=0.5)), "partial_rotary_factor"),
        (dict(quantization_config=dict(bits=4)), "quantization_config"),
        (dict(logit_scale=0.1), "logit_scale"),
        (dict(sliding_window=16), "sliding_window"),
        (dict(model_type="mistral", attention_bias=True), "attention_bias"),
        (dict(model_type="qwen2", mlp_bias=True), "mlp_bias"),
        (dict(layer_types=["full_attention"]), "layer_types"),
        (dict(layer_types=["chunked_attention"] * 3), "layer_types"),
        (dict(num_key_value_heads=3), "num_key_value_heads"),
        (dict(torch_dtype="float64"), "float64"),
    ],
)
def test_what_changes_the_maths_is_refused_by_name(extra, named):
    with pytest.raises(ConfigError, match=named) as error:
        from_hf(LLAMA | extra)
    assert "\n" not in str(error.value)


def test_a_missing_option_is_named():
    with pytest.raises(ConfigError, match="hidden_size"):
        from_hf({k: v for k, v in LLAMA.items() if k != "hidden_size"})


def test_files(tmp_path):
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match="JSON"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | dict(eos_token_id=2)))
    (tmp_path / "generation_config.json").write_text(json.dumps(dict(eos_token_id=[2, 5], temperature=0.6)))
    assert read_config(tmp_path).eos_token_ids == (2, 5)
