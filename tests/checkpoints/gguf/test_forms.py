"""Forms in which llama.cpp stores what a Hugging Face checkpoint has otherwise, and the ends of texts."""

import gguf
import jax.numpy as jnp
import numpy as np
import pytest
from support.gguf_cases import assert_same, raw_config
from support.gguf_files import random_tensors, replace, write_gguf
from support.golden import load_tensors

from specjax.checkpoints.config import read_config
from specjax.checkpoints.placement import Placement
from specjax.checkpoints.tensors import load_model
from specjax.models.rope import Rope, rotary

FLOAT32 = Placement(dtype="float32")
HEADS, NOPE, VALUES = 4, 6, 5
"""Sizes of the heads of the recorded model deepseek_v3."""


def both(*actions):
    """A function for ``more`` that does several."""
    return lambda writer: [action(writer) for action in actions] and None


def test_keys_and_values_of_compressed_rows_may_be_apart(tmp_path):
    """Files of DeepSeek from April 2025 on have a stack of keys, transposed, and a stack of values."""
    raw = raw_config("deepseek_v3")
    tensors = random_tensors(raw)

    def apart(written):
        for name in [name for name in written if "attn_kv_b" in name]:
            matrix = written.pop(name).reshape(HEADS, NOPE + VALUES, -1)
            written[name.replace("kv_b", "k_b")] = matrix[:, :NOPE].swapaxes(1, 2)
            written[name.replace("kv_b", "v_b")] = matrix[:, NOPE:]
        return written

    sizes = {"key_length": 12, "value_length": 8, "head_count_kv": 1, "key_length_mla": 10, "value_length_mla": 5}
    more = both(*(replace(f"deepseek2.attention.{name}", value) for name, value in sizes.items()))
    path = write_gguf(tmp_path / "a.gguf", tensors, raw, more, form=apart)
    assert_same(load_model(path, FLOAT32), load_tensors(tensors, raw))


def test_queries_keys_and_values_may_be_one_matrix(tmp_path):
    """In ChatGLM's files, which are read as the family glm."""
    raw = raw_config("glm")
    tensors = random_tensors(raw)

    def joint(written):
        for name in [name for name in written if "attn_q." in name]:
            parts = [written.pop(name.replace("attn_q.", f"attn_{part}.")) for part in "qkv"]
            written[name.replace("attn_q.", "attn_qkv.")] = np.concatenate(parts)
        return written

    path = write_gguf(tmp_path / "a.gguf", tensors, raw, form=joint)
    assert_same(load_model(path, FLOAT32), load_tensors(tensors, raw))


def test_layers_of_multi_token_prediction_are_left_out(tmp_path):
    raw = raw_config("glm4_moe")
    tensors = random_tensors(raw)
    more = both(replace("glm4moe.block_count", 3), replace("glm4moe.nextn_predict_layers", 1))
    extra = {"blk.2.nextn.eh_proj.weight": np.ones((4, 8), np.float32)}
    path = write_gguf(tmp_path / "a.gguf", tensors, raw, more, form=lambda written: written | extra)
    assert_same(load_model(path, FLOAT32), load_tensors(tensors, raw))


def test_experts_of_early_files_have_their_width_in_a_shape_only(tmp_path):
    raw = raw_config("qwen2_moe")
    path = write_gguf(tmp_path / "a.gguf", random_tensors(raw), raw)
    expected = read_config(path)

    def less(writer):
        for name in ("expert_feed_forward_length", "expert_shared_feed_forward_length"):
            del writer.kv_data[0][f"qwen2moe.{name}"]

    assert read_config(write_gguf(tmp_path / "b.gguf", random_tensors(raw), raw, less)) == expected


@pytest.mark.parametrize("kind, error", [("F16", 1e-3), ("BF16", 1e-2), ("Q8_0", 2e-2), ("Q5_1", 0.1), ("Q4_0", 0.3)])
def test_matrices_of_fewer_bits(kind, error, tmp_path):
    """The numbers of the file are near those that it was made of, in their places."""
    raw = raw_config("llama") | {"hidden_size": 32, "intermediate_size": 64}
    tensors = random_tensors(raw)
    path = write_gguf(tmp_path / "a.gguf", tensors, raw, kind=kind)
    assert_same(load_model(path, FLOAT32), load_tensors(tensors, raw), error)


def test_experts_in_mxfp4(tmp_path):
    """Numbers that MXFP4 holds exactly come back."""
    raw = raw_config("gpt_oss") | {"hidden_size": 32, "intermediate_size": 64}
    rng = np.random.default_rng(0)
    exact = lambda shape: rng.choice(np.float32([-6, -4, -3, -1.5, -0.5, 0, 1, 2, 6]), shape)
    tensors = {
        name: exact(x.shape) if "_proj" in name and x.ndim == 3 else x for name, x in random_tensors(raw).items()
    }
    path = tmp_path / "a.gguf"
    write_gguf(path, tensors, raw, kind="MXFP4")
    kinds = {x.name: x.tensor_type.name for x in gguf.GGUFReader(path).tensors}
    assert kinds["blk.0.ffn_gate_exps.weight"] == "MXFP4"
    assert_same(load_model(path, FLOAT32), load_tensors(tensors, raw))


def test_llama_3_scales_its_frequencies_by_divisors(tmp_path):
    """The published scaling is recognised, and any other divisors are applied as they are."""
    scaling = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    theta = 500000.0
    raw = raw_config("llama") | {"rope_parameters": {"rope_theta": theta, "rope_type": "default"}, "head_dim": 64}
    tensors = random_tensors(raw)
    plain = Rope(theta)
    angle = lambda rope: np.arctan2(*np.asarray(rotary(jnp.ones((1, 1), jnp.int32), rope, 64))[::-1])[0, 0]
    published = Rope(theta, "llama3", **scaling)
    for divisors in (angle(plain) / angle(published), np.linspace(1, 5, 32)):
        form = lambda written: written | {"rope_freqs.weight": divisors.astype(np.float32)}
        rope = read_config(write_gguf(tmp_path / "a.gguf", tensors, raw, form=form)).rope
        np.testing.assert_allclose(angle(rope), angle(plain) / divisors, 1e-4)
        assert (rope == published) == (divisors[-1] > 7)


@pytest.mark.parametrize(
    "template, ids", [("", (2, 7)), ("{{ '<|im_end|>' }}", (2, 7, 4)), ("<|call|><|end|>", (2, 7))]
)
def test_texts_end_with_the_tokens_of_the_file_and_of_its_template(template, ids, tmp_path):
    raw = raw_config("llama")
    more = both(
        lambda writer: writer.add_tokenizer_model("gpt2"),
        lambda writer: writer.add_token_list(["a", "b", "c", "<|end|>", "<|im_end|>", "<|call|>", "d", "<|eot|>"]),
        lambda writer: writer.add_eos_token_id(2),
        lambda writer: writer.add_eot_token_id(7),
        lambda writer: writer.add_chat_template(template),
    )
    assert read_config(write_gguf(tmp_path / "a.gguf", random_tensors(raw), raw, more)).eos_token_ids == ids
