"""The bytes of packed checkpoints, counted by hand."""

import json

import pytest
from support.latent import PUBLISHED

from specjax import ConfigError
from specjax.checkpoints.weight_bytes import stored_bytes

E, F, V, L, H, K, D = 256, 512, 1000, 3, 4, 2, 64
LLAMA = dict(
    model_type="llama", vocab_size=V, hidden_size=E, intermediate_size=F, num_hidden_layers=L, num_attention_heads=H,
    num_key_value_heads=K, head_dim=D, max_position_embeddings=512, rms_norm_eps=1e-6, tie_word_embeddings=False,
)  # fmt: skip
MATRICES = (H * D, E), (K * D, E), (K * D, E), (E, H * D), (F, E), (F, E), (E, F)
"""[out, in] of the tensors of a layer."""


def stored(directory, raw, **settings) -> int | None:
    (directory / "config.json").write_text(json.dumps(raw | ({"quantization_config": settings} if settings else {})))
    return stored_bytes(directory)


def whole(layers: int) -> int:
    """Embedding, output matrix and norms of a Llama in bfloat16."""
    return 2 * (2 * V * E + (2 * layers + 1) * E)


def test_gptq_of_four_bits_in_groups_of_128(tmp_path):
    """qweight, qzeros and g_idx in words of 32 bits, and scales float16."""
    by_hand = 0
    for outputs, inputs in MATRICES:
        groups = inputs // 128
        by_hand += 4 * (inputs // 8 * outputs + groups * outputs // 8 + inputs) + 2 * groups * outputs
    found = stored(tmp_path, LLAMA, quant_method="gptq", bits=4, group_size=128, desc_act=False)
    assert found == whole(L) + L * by_hand
    awq = stored(tmp_path, LLAMA, quant_method="awq", bits=4, group_size=128)
    assert awq == found - L * sum(4 * inputs for _, inputs in MATRICES)


def test_fp8_in_blocks(tmp_path):
    """A byte a number, and a float32 for each block of 128 by 128, also where blocks stand out."""
    wide = LLAMA | dict(intermediate_size=500)
    matrices = (*MATRICES[:4], (500, E), (500, E), (E, 500))
    blocks = lambda size: (size + 127) // 128
    by_hand = sum(a * b + 4 * blocks(a) * blocks(b) for a, b in matrices)
    found = stored(tmp_path, wide, quant_method="fp8", weight_block_size=[128, 128])
    assert found == whole(L) + L * by_hand
    kept = stored(
        tmp_path, wide, quant_method="fp8", weight_block_size=[128, 128], modules_to_not_convert=["mlp.down_proj"]
    )
    assert kept == found + L * (500 * E - 4 * blocks(500) * blocks(E))


def test_deepseek_v3_takes_its_published_bytes(tmp_path):
    """671 billion parameters in FP8 are 671 GB. Scales, and tensors in bfloat16, add a few GB."""
    raw = PUBLISHED["DeepSeek-V3"]
    found = stored(tmp_path, raw, quant_method="fp8", weight_block_size=[128, 128])
    assert found == pytest.approx(671e9 * (1 + 4 / 128**2) + 2 * 129280 * 7168, rel=3e-3)


def test_full_weights_and_other_methods_have_no_figure(tmp_path):
    assert stored(tmp_path, LLAMA) is None
    assert stored(tmp_path, LLAMA, quant_method="mxfp4") is None
    with pytest.raises(ConfigError, match="quant_method is 'magic'; it must be one of gptq, awq"):
        stored(tmp_path, LLAMA, quant_method="magic")
