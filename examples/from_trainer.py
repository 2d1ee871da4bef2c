"""From your trainer: parameters in another library's layout become a target.

Later parameters replace them without compiling anew. The layout here is MaxText's for Llama:
kernels are [in, out], all layers are stacked along the second axis, and heads have their own axis.

    python examples/from_trainer.py
"""

from typing import Any

import numpy as np
from flax import nnx
from flax.traverse_util import flatten_dict, unflatten_dict

import specjax
from specjax.checkpoints.arrays import decoder_from_arrays

LAYER = "decoder.layers"
NAMES = {
    "embed": ["token_embedder.embedding"],
    "norm": ["decoder.decoder_norm.scale"],
    "head": ["decoder.logits_dense.kernel"],
    "layers.N.mixer_norm": [f"{LAYER}.pre_self_attention_layer_norm.scale"],
    "layers.N.mixer.qkv": [f"{LAYER}.self_attention.{name}.kernel" for name in ("query", "key", "value")],
    "layers.N.mixer.out": [f"{LAYER}.self_attention.out.kernel"],
    "layers.N.mlp_norm": [f"{LAYER}.post_self_attention_layer_norm.scale"],
    "layers.N.mlp.gate_up": [f"{LAYER}.mlp.wi_0.kernel", f"{LAYER}.mlp.wi_1.kernel"],
    "layers.N.mlp.down": [f"{LAYER}.mlp.wo.kernel"],
}
"""For each parameter of a ``Decoder`` the trainer's names of its arrays."""


def to_rows(name: str):
    """The function ``(array, layer)`` that gives the rows [out, in] of one layer."""
    if name.endswith("scale"):
        return lambda x, layer: x if layer is None else x[:, layer]
    if name.endswith("self_attention.out.kernel"):  # [heads, layers, size, width]
        return lambda x, layer: x[:, layer].reshape(-1, x.shape[-1]).T
    if name.startswith(LAYER):  # [width, layers, ...]
        return lambda x, layer: x[:, layer].reshape(x.shape[0], -1).T
    return lambda x, layer: x.T if name.endswith("kernel") else x


ROWS = {name: to_rows(name) for names in NAMES.values() for name in names}


def trainer_params(config: specjax.ModelConfig, seed: int) -> dict:
    """Random parameters as the trainer holds them: nested dictionaries of arrays."""
    L, E, F, V = config.num_layers, config.hidden_size, config.intermediate_size, config.vocab_size
    H, K, D = config.num_heads, config.num_kv_heads, config.head_dim
    shapes = {
        "token_embedder.embedding": (V, E),
        "decoder.decoder_norm.scale": (E,),
        "decoder.logits_dense.kernel": (E, V),
        f"{LAYER}.pre_self_attention_layer_norm.scale": (E, L),
        f"{LAYER}.post_self_attention_layer_norm.scale": (E, L),
        f"{LAYER}.self_attention.query.kernel": (E, L, H, D),
        f"{LAYER}.self_attention.key.kernel": (E, L, K, D),
        f"{LAYER}.self_attention.value.kernel": (E, L, K, D),
        f"{LAYER}.self_attention.out.kernel": (H, L, D, E),
        f"{LAYER}.mlp.wi_0.kernel": (E, L, F),
        f"{LAYER}.mlp.wi_1.kernel": (E, L, F),
        f"{LAYER}.mlp.wo.kernel": (F, L, E),
    }
    rng = np.random.default_rng(seed)
    draw = lambda name, shape: np.ones(shape) if name.endswith("scale") else rng.normal(0, 0.2, shape)
    return unflatten_dict({name: draw(name, shape).astype(np.float32) for name, shape in shapes.items()}, sep=".")


def main() -> tuple[list[int], list[int]]:
    tokenizer = specjax.load("tiny-python").tokenizer  # yours: any tokenizer of transformers
    config = specjax.ModelConfig(
        "llama", vocab_size=4096, hidden_size=64, intermediate_size=96, num_layers=2, num_heads=4, num_kv_heads=2,
        head_dim=16, max_position_embeddings=512, eos_token_ids=(0,),
    )  # fmt: skip
    flat: Any = lambda params: flatten_dict(params, sep=".")  # flax types its values as dictionaries
    decoder = lambda params: decoder_from_arrays(config, flat(params), NAMES, ROWS)
    model = decoder(trainer_params(config, seed=0))
    generator = specjax.Generator(specjax.LanguageModel(model, config, tokenizer, "from my trainer"), "ngram")
    before = generator("def add(", max_new_tokens=16)

    generator.update(nnx.state(decoder(trainer_params(config, seed=1))))  # after some steps of training
    after = generator("def add(", max_new_tokens=16)
    assert after.stats.compile_seconds == 0
    return before.token_ids, after.token_ids


if __name__ == "__main__":
    print(*main(), sep="\n")
