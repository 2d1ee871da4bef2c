"""Arrays of other libraries: a Decoder's weights in their layouts give that Decoder again."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from flax.traverse_util import flatten_dict
from support.models import TINY, tiny_model

from specjax.checkpoints.arrays import decoder_from_arrays
from specjax.checkpoints.families import NAMES
from specjax.checkpoints.tensors import load_model, save_model
from specjax.errors import CheckpointError, RequestError
from specjax.parallel import make_mesh

E, H, K, D, L = TINY.hidden_size, TINY.num_heads, TINY.num_kv_heads, TINY.head_dim, TINY.num_layers

LAYER = "decoder.layers"
MAXTEXT = {
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
"""MaxText's names for Llama. Layers are stacked along the second axis of each array."""

MAXTEXT_ROWS = (
    {name: lambda x, layer: x[:, layer].reshape(E, -1).T for name in MAXTEXT["layers.N.mixer.qkv"]}
    | {name: lambda x, layer: x[:, layer].T for name in MAXTEXT["layers.N.mlp.gate_up"] + MAXTEXT["layers.N.mlp.down"]}
    | {
        name: lambda x, layer: x[:, layer]
        for path in ("mixer_norm", "mlp_norm")
        for name in MAXTEXT[f"layers.N.{path}"]
    }
    | {f"{LAYER}.self_attention.out.kernel": lambda x, layer: x[:, layer].reshape(-1, E).T}
    | {"decoder.logits_dense.kernel": lambda x, layer: x.T}
)


@pytest.fixture(scope="module")
def model():
    return tiny_model(3)


@pytest.fixture(scope="module")
def published(model, tmp_path_factory) -> dict:
    """The model's tensors by their Hugging Face names, as the writer of checkpoints has them."""
    from safetensors.numpy import load_file

    directory = tmp_path_factory.mktemp("model")
    save_model(model, directory)
    assert same(load_model(directory), model)
    return load_file(directory / "model.safetensors")


@pytest.fixture(scope="module")
def maxtext(published) -> dict:
    """The same weights as a nested dictionary of MaxText: kernels [in, layer, ...], heads apart."""
    tensors = {name.removeprefix("model.").removesuffix(".weight"): x for name, x in published.items()}
    stack = lambda name, shape: np.stack([tensors[f"layers.{i}.{name}"].T.reshape(shape) for i in range(L)], 1)
    attention = {
        ours: {"kernel": stack(f"self_attn.{theirs}_proj", (E, heads, D))}
        for ours, theirs, heads in (("query", "q", H), ("key", "k", K), ("value", "v", K))
    }
    attention["out"] = {
        "kernel": np.stack([tensors[f"layers.{i}.self_attn.o_proj"].T.reshape(H, D, E) for i in range(L)], 1)
    }
    layers = {
        "self_attention": attention,
        "pre_self_attention_layer_norm": {"scale": stack("input_layernorm", (E,))},
        "post_self_attention_layer_norm": {"scale": stack("post_attention_layernorm", (E,))},
        "mlp": {
            "wi_0": {"kernel": stack("mlp.gate_proj", (E, -1))},
            "wi_1": {"kernel": stack("mlp.up_proj", (E, -1))},
            "wo": {"kernel": stack("mlp.down_proj", (-1, E))},
        },
    }
    return {
        "token_embedder": {"embedding": tensors["embed_tokens"]},
        "decoder": {
            "decoder_norm": {"scale": tensors["norm"]},
            "logits_dense": {"kernel": tensors["lm_head"].T},
            "layers": layers,
        },
    }


def same(a, b) -> bool:
    pairs = zip(jax.tree.leaves(nnx.state(a)), jax.tree.leaves(nnx.state(b)), strict=True)
    return all(x.dtype == y.dtype and np.array_equal(x, y) for x, y in pairs)


def from_maxtext(maxtext, **options):
    return decoder_from_arrays(TINY, flatten_dict(maxtext, sep="."), MAXTEXT, MAXTEXT_ROWS, **options)


def test_stacked_kernels_of_maxtext_give_equal_logits(model, maxtext):
    tokens = jnp.asarray([[5, 9, 2, 7]])
    positions, mask = jnp.arange(4)[None], jnp.tril(jnp.ones((4, 4), bool))
    logits = jax.jit(lambda model: model.logits(model(tokens, positions, mask).hidden))
    np.testing.assert_array_equal(logits(from_maxtext(maxtext)), logits(model))


def test_kernels_of_tunix_are_transposed_layer_by_layer(model, published):
    """tunix numbers its layers, keeps heads apart and calls kernels [in, out] ``kernel`` or ``w``."""
    tensors = {name.removesuffix(".weight"): x for name, x in published.items()}
    arrays, names, to_rows = {}, {}, {}

    def add(path, source, listed, there, back):
        numbers = range(L) if "N" in listed else [0]
        names.setdefault(path, []).append(listed)
        to_rows[listed] = lambda x, layer: back(x)
        arrays.update({listed.replace("N", str(i)): there(tensors[source.replace("N", str(i))]) for i in numbers})

    keep = lambda x: x
    turn = lambda x: x.T
    add("embed", "model.embed_tokens", "embedder.input_embedding", keep, keep)
    add("norm", "model.norm", "final_norm.w", keep, keep)
    add("head", "lm_head", "lm_head.w", turn, turn)
    add("layers.N.mixer_norm", "model.layers.N.input_layernorm", "layers.N.input_layernorm.w", keep, keep)
    add(
        "layers.N.mlp_norm",
        "model.layers.N.post_attention_layernorm",
        "layers.N.post_attention_layernorm.w",
        keep,
        keep,
    )
    for x in "qkv":
        split, merge = (lambda x: x.T.reshape(E, -1, D)), (lambda x: x.reshape(E, -1).T)
        add("layers.N.mixer.qkv", f"model.layers.N.self_attn.{x}_proj", f"layers.N.attn.{x}_proj.w", split, merge)
    split, merge = (lambda x: x.T.reshape(H, D, E)), (lambda x: x.reshape(-1, E).T)
    add("layers.N.mixer.out", "model.layers.N.self_attn.o_proj", "layers.N.attn.o_proj.w", split, merge)
    for path, name in (("gate_up", "gate"), ("gate_up", "up"), ("down", "down")):
        add(f"layers.N.mlp.{path}", f"model.layers.N.mlp.{name}_proj", f"layers.N.mlp.{name}_proj.kernel", turn, turn)
    assert same(decoder_from_arrays(TINY, arrays, names, to_rows), model)


def test_the_table_of_a_family_takes_its_published_tensors(model, published):
    assert same(decoder_from_arrays(TINY, published, NAMES["llama"]), model)


def test_it_is_traced_like_any_function_of_arrays(model, maxtext):
    graph = nnx.split(model)[0]
    convert = jax.jit(lambda arrays: nnx.split(from_maxtext(arrays))[1])
    assert same(nnx.merge(graph, convert(maxtext)), model)


def test_dtype_and_mesh(model, maxtext):
    half = from_maxtext(maxtext, dtype="bfloat16", mesh=make_mesh(data=2, model=2))
    assert {x.dtype for x in jax.tree.leaves(nnx.state(half))} == {jnp.dtype("bfloat16")}
    shards = half.layers[0].mixer.qkv[...].addressable_shards
    assert len(shards) == 4 and shards[0].data.shape[0] * 2 == half.layers[0].mixer.qkv.shape[0]
    np.testing.assert_array_equal(half.layers[1].mixer.qkv[...], model.layers[1].mixer.qkv[...].astype(jnp.bfloat16))


def test_the_letter_of_the_layer_is_not_taken_out_of_words(model, published):
    renamed = {name.replace("input_layernorm", "InputNorm"): x for name, x in published.items()}
    names = NAMES["llama"] | {"layers.N.mixer_norm": ["model.layers.N.InputNorm.weight"]}
    assert same(decoder_from_arrays(TINY, renamed, names), model)


def test_every_fault_is_listed_at_once(published):
    bad = dict(published)
    del bad["model.norm.weight"]
    bad["more"] = np.ones(3, np.float32)
    bad["lm_head.weight"] = bad["lm_head.weight"].T
    bad["model.layers.1.mlp.down_proj.weight"] = bad["model.layers.1.mlp.down_proj.weight"].astype(np.int32)
    with pytest.raises(CheckpointError) as error:
        decoder_from_arrays(TINY, bad, NAMES["llama"])
    message = str(error.value)
    assert "model.norm.weight is missing" in message and "more is unexpected" in message and "\n" not in message
    assert (
        "lm_head.weight has shape (32, 61), not (61, 32)" in message and "down_proj.weight is of type int32" in message
    )


def test_a_missing_stacked_array_is_named_with_its_layers(maxtext):
    names = {**MAXTEXT, "layers.N.mlp_norm": ["missing.scale"]}
    with pytest.raises(CheckpointError, match=r"missing\.scale\[0\] is missing; missing\.scale\[1\] is missing"):
        decoder_from_arrays(TINY, flatten_dict(maxtext, sep="."), names, MAXTEXT_ROWS)


def test_a_parameter_without_names_and_another_dtype_are_refused(published):
    with pytest.raises(RequestError, match=r"names has no entry for 'layers\.N\.mixer\.q_norm'"):
        decoder_from_arrays(
            TINY.replace(qk_norm=True), published, {k: v for k, v in NAMES["qwen3"].items() if "q_norm" not in k}
        )
    with pytest.raises(RequestError, match="int8"):
        decoder_from_arrays(TINY, published, NAMES["llama"], dtype="int8")
