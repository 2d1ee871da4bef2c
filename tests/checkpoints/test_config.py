"""Configurations: read, written back, and refused by the name of every wrong or unsupported option."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

from specjax.checkpoints.config import check_dtype, from_hf, read_config, to_hf
from specjax.checkpoints.families import FAMILIES
from specjax.errors import CheckpointError, ConfigError, RequestError, SpecjaxWarning
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
LLAMA3 = dict(
    rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192
)


def test_old_and_new_rope_options_give_the_same_configuration():
    old = from_hf(LLAMA | dict(rope_theta=5e5, rope_scaling=LLAMA3, max_position_embeddings=131072))
    new = from_hf(LLAMA | dict(rope_parameters=LLAMA3 | dict(rope_theta=5e5), max_position_embeddings=131072))
    assert old == new
    assert old.rope.theta == 5e5 and old.rope.factor == 8


def test_type_is_the_old_name_of_rope_type():
    assert from_hf(LLAMA | dict(rope_scaling=dict(type="linear", factor=2.0))).rope == Rope(
        rope_type="linear", factor=2.0
    )


def test_defaults_of_the_families():
    assert from_hf(LLAMA | dict(num_key_value_heads=None)).num_kv_heads == 4 and from_hf(LLAMA).head_dim == 4
    qwen2 = from_hf(LLAMA | dict(model_type="qwen2"))
    assert qwen2.qkv_bias and not qwen2.out_bias
    qwen3 = from_hf(LLAMA | dict(model_type="qwen3", head_dim=8))
    assert qwen3.qk_norm and not qwen3.qkv_bias and qwen3.head_dim == 8
    biased = from_hf(LLAMA | dict(attention_bias=True, mlp_bias=True))
    assert biased.qkv_bias and biased.out_bias and biased.mlp_bias


def test_missing_options_have_the_defaults_of_transformers():
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
    assert (
        from_hf(LLAMA | dict(rope_scaling=dict(rope_type="dynamic", factor=2.0), max_position_embeddings=64)).context
        == 128
    )


def test_rope_scaling_takes_precedence_over_rope_parameters_as_in_transformers():
    both = dict(rope_scaling=dict(type="linear", factor=2.0), rope_parameters=dict(rope_type="default", rope_theta=5e5))
    assert from_hf(LLAMA | both).rope.rope_type == "linear"
    assert (
        from_hf(LLAMA | dict(rope_scaling=dict(type="linear", rope_type="dynamic", factor=2.0))).rope.rope_type
        == "dynamic"
    )


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
        dict(
            rope_scaling=dict(rope_type="dynamic", factor=2.0),
            attention_bias=True,
            mlp_bias=True,
            torch_dtype="bfloat16",
        ),
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
        (dict(model_type="mamba"), "mamba"),
        (dict(hidden_act="gelu"), "hidden_act"),
        (dict(rope_scaling=dict(rope_type="ntk", factor=2.0)), "ntk"),
        (dict(rope_scaling=dict(rope_type="linear")), "factor"),
        (dict(rope_scaling=dict(rope_type="llama3", factor=8.0)), "low_freq_factor"),
        (dict(rope_parameters=dict(rope_theta=1e4, partial_rotary_factor=0.5)), "partial_rotary_factor"),
        (dict(model_type="mistral", attention_bias=True), "attention_bias"),
        (dict(model_type="qwen2", mlp_bias=True), "mlp_bias"),
        (dict(layer_types=["full_attention"]), "layer_types"),
        (dict(layer_types=["chunked_attention"] * 3), "layer_types"),
        (dict(num_key_value_heads=3), "num_key_value_heads"),
        (dict(torch_dtype="float64"), "float64"),
    ],
)
def test_options_that_change_the_maths_are_refused_by_name(extra, named):
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


@pytest.mark.parametrize("ids", [-1, "2", 2.0, True, [[2]], {"a": 2}])
def test_end_of_text_ids_of_the_generation_config_are_checked(tmp_path, ids):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    (tmp_path / "generation_config.json").write_text(json.dumps(dict(eos_token_id=ids)))
    with pytest.raises(ConfigError, match=r"generation_config\.json: eos_token_id"):
        read_config(tmp_path)


def test_ids_outside_the_vocabulary_are_ignored_and_named(tmp_path):
    """A small GPT2Config keeps GPT-2's own ids, and transformers loads it with a warning."""
    with pytest.warns(SpecjaxWarning, match=r"ignores (bos|eos)_token_id (50256|32); the vocabulary has ids 0 to 31"):
        config = from_hf(LLAMA | dict(bos_token_id=50256, eos_token_id=[2, 32]))
    assert config.bos_token_id is None and config.eos_token_ids == (2,)
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    (tmp_path / "generation_config.json").write_text(json.dumps(dict(eos_token_id=[3, 32])))
    with pytest.warns(SpecjaxWarning, match=r"generation_config.json: ignores eos_token_id 32"):
        assert read_config(tmp_path).eos_token_ids == (3,)


# Mutations: every option of a good configuration of every family, with values of every wrong kind.

ROPES = [
    dict(rope_type="default", rope_theta=5e5),
    dict(rope_type="linear", factor=2.0),
    dict(rope_type="dynamic", factor=2.0),
    LLAMA3,
    dict(
        rope_type="yarn",
        factor=4.0,
        original_max_position_embeddings=64,
        beta_fast=32.0,
        beta_slow=1.0,
        attention_factor=1.2,
        mscale=1.0,
        mscale_all_dim=0.5,
        truncate=False,
    ),
]
WHOLE = dict(
    model_type="llama",
    architectures=["Model"],
    is_encoder_decoder=False,
    vocab_size=32,
    hidden_size=16,
    intermediate_size=24,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    hidden_act="silu",
    max_position_embeddings=128,
    rms_norm_eps=1e-5,
    rope_theta=5e5,
    use_sliding_window=False,
    max_window_layers=1,
    layer_types=["full_attention"] * 3,
    tie_word_embeddings=True,
    attention_bias=False,
    mlp_bias=False,
    bos_token_id=1,
    eos_token_id=[2, 3],
    dtype="bfloat16",
)
HARMLESS = dict(
    attention_dropout=0.0, initializer_range=0.02, transformers_version="5.0.0", use_cache=True, pad_token_id=-1
)
GOOD = {
    "llama": WHOLE,
    "mistral": WHOLE | dict(model_type="mistral", sliding_window=7),
    "qwen2": WHOLE | dict(model_type="qwen2", sliding_window=7),
    "qwen3": WHOLE | dict(model_type="qwen3", sliding_window=7),
}
NOT_FINITE = [1e400, -1e400, float("nan")]
NOT_A_NUMBER = ["abc", "", "1", "1e-5", "false", True, False, [], [1], [[1]], ["abc"], {}, {"a": {"b": [None]}}]
NO_COUNT = [*NOT_A_NUMBER, *NOT_FINITE, -1, 0, 0.5, 2.0, 10**30]
NO_NUMBER = [*NOT_A_NUMBER, *NOT_FINITE, -2, -1e30, 1e300, 10**400]
NO_FLAG = ["abc", "", "false", "true", 0, 1, -1, 0.5, *NOT_FINITE, [], [True], {}, {"a": 1}]
NO_STRING = [0, 1, -1, 0.5, *NOT_FINITE, True, [], ["abc"], {}, {"a": 1}, "abc", ""]
NO_TABLE = ["abc", "", 0, 1, 0.5, *NOT_FINITE, True, False, [], [1], [{}]]
WRONG = {
    "model_type": [*NO_STRING, None],
    "architectures": ["abc", 0, 1, True, {}, [1], [None], [["abc"]]],
    "is_encoder_decoder": [*NO_FLAG, True],
    "vocab_size": [*NO_COUNT, None],
    "hidden_size": [*NO_COUNT, None],
    "intermediate_size": [*NO_COUNT, None],
    "num_hidden_layers": [*NO_COUNT, None, 10**6],
    "num_attention_heads": [*NO_COUNT, None, 10**6],
    "num_key_value_heads": [*NO_COUNT, 3, 8],
    "head_dim": [*NO_COUNT, 1, 3],
    "hidden_act": [*NO_STRING, "gelu"],
    "max_position_embeddings": [*NO_COUNT, None, 2**31],
    "rms_norm_eps": [*NO_NUMBER, None, 0, -1e-6, 2],
    "rope_theta": [*NO_NUMBER, 0, -10000.0, 1],
    "rope_scaling": NO_TABLE,
    "rope_parameters": NO_TABLE,
    "sliding_window": NO_COUNT,
    "use_sliding_window": NO_FLAG,
    "max_window_layers": [value for value in [*NO_COUNT, None] if value is False or value != 0],
    "layer_types": [
        "abc",
        "",
        0,
        1,
        True,
        {},
        [],
        [1],
        ["full_attention"] * 2,
        [["full_attention"]] * 3,
        ["other"] * 3,
    ],
    "tie_word_embeddings": NO_FLAG,
    "attention_bias": NO_FLAG,
    "mlp_bias": NO_FLAG,
    "bos_token_id": [value for value in NO_COUNT if value is False or value != 0],
    "eos_token_id": [-1, [-1], "2", ["2"], 2.0, [2.0], True, [True], [[2]], {}, *NOT_FINITE, 10**30],
    "dtype": [*NO_STRING, "int8", "float64", "torch.int8"],
    "torch_dtype": [*NO_STRING, "int8", "float64", "torch.int8"],
}
WRONG_ROPE = {
    "rope_type": [*NO_STRING, "ntk"],
    "type": [*NO_STRING, "ntk"],
    "rope_theta": [*NO_NUMBER, 0, -10000.0],
    "factor": [*NO_NUMBER, 0, -1],
    "original_max_position_embeddings": NO_COUNT,
    "low_freq_factor": [*NO_NUMBER, 0],
    "high_freq_factor": [*NO_NUMBER, 0],
    "beta_fast": [*NO_NUMBER, 0],
    "beta_slow": [*NO_NUMBER, 0],
    "attention_factor": [*NO_NUMBER, 0],
    "mscale": NO_NUMBER,
    "mscale_all_dim": NO_NUMBER,
    "truncate": NO_FLAG,
}


NEVER_NULL = {
    "model_type",
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "hidden_act",
    "max_position_embeddings",
    "rms_norm_eps",
    "max_window_layers",
}


def refusal(raw) -> str:
    with pytest.raises(ConfigError) as error:
        from_hf(raw, "a/config.json")
    message = str(error.value)
    assert message.startswith("a/config.json: ") and "\n" not in message and len(message) < 400
    return message


@pytest.mark.parametrize("family", GOOD)
@pytest.mark.parametrize("field", WRONG)
def test_a_wrong_value_is_refused_by_the_name_of_its_option(family, field):
    from_hf(GOOD[family])
    for value in WRONG[field] if field in FAMILIES[family].options else ():
        assert field in refusal(GOOD[family] | {field: value}), value


@pytest.mark.parametrize("rope", ROPES, ids=lambda rope: rope["rope_type"])
@pytest.mark.parametrize("within", ["rope_scaling", "rope_parameters"])
def test_a_wrong_value_of_a_rope_option_is_refused_by_name(rope, within):
    from_hf(WHOLE | {within: rope})
    for field, values in WRONG_ROPE.items():
        for value in values:
            assert f"{within}.{field}" in refusal(WHOLE | {within: rope | {field: value}}), value


@pytest.mark.parametrize("family", GOOD)
def test_the_value_of_a_harmless_option_changes_nothing(family):
    good = from_hf(GOOD[family])
    for field in HARMLESS:
        for value in [*NO_COUNT, *NO_TABLE, None]:
            assert from_hf(GOOD[family] | HARMLESS | {field: value}) == good


@pytest.mark.parametrize("family", GOOD)
def test_null_is_read_as_the_default_or_refused(family):
    for field in GOOD[family]:
        raw = GOOD[family] | {field: None}
        if field in NEVER_NULL:
            assert field in refusal(raw)
        else:
            assert from_hf(to_hf(from_hf(raw))) == from_hf(raw)


def test_llama_has_no_window_and_mistral_no_biases():
    """Transformers' Llama does not read ``sliding_window``, which conversions of other families leave."""
    with pytest.warns(SpecjaxWarning, match="ignores option 'sliding_window', which transformers does not read"):
        assert from_hf(WHOLE | dict(sliding_window=7)) == from_hf(WHOLE)
    assert "attention_bias" in refusal(GOOD["mistral"] | dict(attention_bias=True))
    for family in ("mistral", "qwen2", "qwen3"):
        assert "mlp_bias" in refusal(GOOD[family] | dict(mlp_bias=True))


@pytest.mark.parametrize(
    "changes, named",
    [
        (dict(head_dim=None, hidden_size=18), "hidden_size is 18; without head_dim it must be a multiple"),
        (
            dict(rope_scaling=LLAMA3 | dict(low_freq_factor=5.0)),
            "high_freq_factor is 4.0; it must be at least low_freq_factor",
        ),
        (dict(rope_scaling=dict(rope_type="yarn", factor=2.0, beta_fast=1, beta_slow=2)), "beta_fast is 1.0"),
        (dict(rope_scaling=dict(rope_type="dynamic", factor=0.5)), "dynamic"),
        (dict(rope_scaling=dict(rope_type="dynamic", factor=2.0), head_dim=2), "head_dim of at least 4"),
        (
            dict(rope_scaling=dict(rope_type="dynamic", factor=1e6), max_position_embeddings=2**20),
            "max_position_embeddings",
        ),
        (dict(model_type=["llama"]), "model_type"),
    ],
)
def test_options_that_contradict_each_other_are_refused(changes, named):
    assert named in refusal(WHOLE | changes)


@pytest.mark.parametrize("raw", [[], "llama", None, 3])
def test_a_configuration_that_is_no_object_is_refused(raw):
    assert "must be an object" in refusal(raw)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", np.float32, jnp.bfloat16, np.dtype("float16")])
def test_types_of_weights_are_taken_by_name_or_class(dtype):
    assert jnp.dtype(check_dtype(dtype)) == jnp.dtype(dtype)


@pytest.mark.parametrize("dtype", ["int8", "float64", "torch.float32", "", "abc", 3, np.int32, ["float32"]])
def test_other_types_of_weights_are_refused_with_the_allowed_ones(dtype):
    with pytest.raises(RequestError, match="it must be one of float32, bfloat16, float16") as error:
        check_dtype(dtype)
    assert "\n" not in str(error.value)
