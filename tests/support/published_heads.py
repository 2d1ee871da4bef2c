"""Checkpoints of heads with random tensors, in the forms that their authors publish."""

import json
import re

import numpy as np
from safetensors.numpy import save_file

from support.models import language_model, tiny_model
from support.torch_files import torch_file

E, F, H, K, D, V, L, KNOWN = 32, 48, 4, 2, 8, 61, 6, 20
LLAMA = dict(
    model_type="llama",
    vocab_size=V,
    hidden_size=E,
    intermediate_size=F,
    num_hidden_layers=1,
    num_attention_heads=H,
    num_key_value_heads=K,
    head_dim=D,
    max_position_embeddings=256,
    rms_norm_eps=1e-5,
    rope_theta=5e5,
    torch_dtype="float32",
)
DEEP = language_model(tiny_model(num_layers=L), "deep")
"""The target of all heads."""

RNG = np.random.default_rng(0)


def normal(*shape) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def layer(prefix: str, inputs: int = 1, norm: bool = True, qk_norm: bool = False, bias: bool = False) -> dict:
    """A decoder layer of the published names and shapes."""
    sizes = {"q": H * D, "k": K * D, "v": K * D}
    tensors = {f"self_attn.{x}_proj.weight": normal(rows, inputs * E) for x, rows in sizes.items()}
    tensors |= {f"self_attn.{x}_proj.bias": normal(rows) for x, rows in sizes.items() if bias}
    tensors |= {f"self_attn.{x}_norm.weight": normal(D) for x in "qk" if qk_norm}
    tensors |= {"self_attn.o_proj.weight": normal(E, H * D), "post_attention_layernorm.weight": normal(E)}
    tensors |= {"input_layernorm.weight": normal(E)} if norm else {}
    tensors |= {
        "mlp.gate_proj.weight": normal(F, E),
        "mlp.up_proj.weight": normal(F, E),
        "mlp.down_proj.weight": normal(E, F),
    }
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}


def mapping() -> dict:
    """A draft vocabulary as published: offsets, and which tokens it holds."""
    tokens = np.sort(RNG.permutation(V)[:KNOWN])
    return {"d2t": tokens - np.arange(KNOWN), "t2d": np.isin(np.arange(V), tokens)}


def write(directory, raw: dict, tensors: dict, file: str = "model.safetensors"):
    directory.mkdir(exist_ok=True, parents=True)
    if file.endswith(".safetensors"):
        save_file(tensors, directory / file)
    else:
        (directory / file).write_bytes(torch_file(tensors))
    (directory / "config.json").write_text(json.dumps(raw))
    return directory


def eagle(**raw):
    tensors = {"fc.weight": normal(E, 2 * E), "fc.bias": normal(E), "embed_tokens.weight": normal(V, E)} | layer(
        "layers.0", norm=False
    )
    return LLAMA | dict(architectures=["LlamaForCausalLM"]) | raw, tensors


def eagle3(prefix="midlayer", **raw):
    tensors = {"fc.weight": normal(E, 3 * E), "norm.weight": normal(E), "lm_head.weight": normal(KNOWN, E)} | mapping()
    tensors |= layer(prefix, inputs=2) | {f"{prefix}.hidden_norm.weight": normal(E)}
    return LLAMA | dict(architectures=["LlamaForCausalLMEagle3"], draft_vocab_size=KNOWN) | raw, tensors


def parallel(**raw):
    base, tensors = eagle3()
    return base | dict(parallel_drafting=True, mask_token_id=60) | raw, tensors | {"mask_hidden": normal(1, 1, 3 * E)}


def medusa(blocks=1, prefix="", **raw):
    tensors = {
        f"{prefix}{k}.{j}.linear.{x}": normal(*((E, E) if x == "weight" else (E,)))
        for k in range(5)
        for j in range(blocks)
        for x in ("weight", "bias")
    }
    tensors |= {f"{prefix}{k}.{blocks}.weight": normal(V, E) for k in range(5)}
    return dict(
        medusa_num_heads=2, medusa_num_layers=blocks, base_model_name_or_path="x", torch_dtype="float32"
    ) | raw, tensors


def hydra(blocks=1, **raw):
    tensors = {
        f"hydra_lm_head.{k}.{x}": normal(*((V, E) if x == "weight" else (V,)))
        for k in range(3)
        for x in ("weight", "bias")
    }
    for k in range(3):
        for part in ("linear", "res_connection"):
            tensors |= {
                f"hydra_mlp.{k}.0.{part}.weight": normal(E, (k + 2) * E),
                f"hydra_mlp.{k}.0.{part}.bias": normal(E),
            }
        for j in range(1, blocks):
            tensors |= {f"hydra_mlp.{k}.{j}.linear.weight": normal(E, E), f"hydra_mlp.{k}.{j}.linear.bias": normal(E)}
    tensors |= {"input_embed_fn.weight": normal(V, E)}
    return dict(
        hydra_num_heads=3, hydra_num_layers=blocks, hydra_head_arch="mlp", grounded_heads=True, torch_dtype="float32"
    ) | raw, tensors


def hydra_prefixed(blocks=2, **raw):
    """Hydra++ as its authors write it: dropouts take numbers, and all blocks after the first are
    one block."""
    base, plain = hydra(blocks + 1)
    tensors = {"input_embed_fn.weight": plain["input_embed_fn.weight"], "prefix_embeding_layer.norm.weight": normal(E)}
    tensors |= layer("prefix_embeding_layer.layers.0")
    for name, tensor in plain.items():
        part, *rest = name.split(".")
        if part == "hydra_lm_head":
            tensors[f"{part}.{rest[0]}.1.{rest[1]}"] = tensor
        elif part == "hydra_mlp":
            tensors[".".join([part, rest[0], str(2 * int(rest[1]) + 1), *rest[2:]])] = tensor
    tensors |= {
        name.replace(".5.", ".3."): tensor
        for name, tensor in tensors.items()
        if name.startswith("hydra_mlp") and ".5." in name
    }
    return base | dict(hydra_head_arch="prefix-mlp", hydra_num_layers=blocks + 1, hidden_state_offset=0) | raw, tensors


def dflash(layers=2, own=False, **raw):
    tensors = {"fc.weight": normal(E, 2 * E), "hidden_norm.weight": normal(E), "norm.weight": normal(E)}
    for i in range(layers):
        tensors |= layer(f"layers.{i}", qk_norm=True)
    tensors |= {"embed_tokens.weight": normal(V, E), "lm_head.weight": normal(V, E)} if own else {}
    base = dict(
        model_type="qwen3",
        architectures=["DFlashDraftModel"],
        num_hidden_layers=layers,
        block_size=8,
        num_target_layers=L,
    )
    windows = dict(layer_types=["full_attention", "sliding_attention"], sliding_window=16, use_sliding_window=True)
    return LLAMA | base | windows | dict(dflash_config=dict(mask_token_id=60, target_layer_ids=[1, 3])) | raw, tensors


def convolutions(layers: int) -> dict:
    """The tensors of DFlash 2's convolutions of 2 taps and groups of 16 channels."""
    tensors = {}
    for i in range(layers):
        for part in ("attention_conv", "mlp_conv"):
            tensors[f"layers.{i}.{part}.base_kernel"] = normal(2, 2, E)
            tensors[f"layers.{i}.{part}.kernel_projection.weight"] = normal(2 * 2 * (E // 16), E)
    return tensors


def selector() -> dict:
    codes = {f"candidate_selector.{side}_codebook": normal(V, 4) for side in ("predecessor", "successor")}
    return codes | {"candidate_selector.hidden_projection.weight": normal(4, E)}


DFLASH2 = dict(conv_kernel_size=2, conv_group_size=16, selector_rank=4, selector_top_k=5)


def dflash2(**raw):
    base, tensors = dflash()
    nested = base["dflash_config"] | dict(block_size=8) | DFLASH2
    del base["block_size"]
    own = dict(architectures=["DFlash2DraftModel"], is_causal=False, dflash_config=nested)
    return base | own | raw, tensors | convolutions(2) | selector()


def refiner(*names: str, block: int = 8, known: int = V) -> dict:
    """The nine tensors of XPress of rank 4 and width 8, under these names."""
    shapes = ((V, 4), (4, E), (4, E), (4, 12), (4, block, block), (8, 4), (8, 4), (4, 8), (known, 4))
    return {name: normal(*shape) for name, shape in zip(names, shapes, strict=True)}


XPRESS = ("w1.weight", "down_h.weight", "down_g.weight", "in_proj.weight", "mix.L", "mlp.gate_proj.weight",
          "mlp.up_proj.weight", "mlp.down_proj.weight", "w2.weight")  # fmt: skip


def xpress(**raw):
    base, tensors = dflash()
    own = dict(xpress_rank=4, xpress_mlp_hidden=8, xpress_num_passes=6, xpress_block_size=8)
    names = [f"xpress_head.{name}" for name in XPRESS]
    return base | dict(architectures=["Qwen3XPressModel"]) | own | raw, tensors | refiner(*names)


def dspark(kind="vanilla", **raw):
    base, tensors = dflash(own=True)
    tensors |= {"markov_head.markov_w1.weight": normal(V, 4), "markov_head.markov_w2.weight": normal(V, 4)}
    tensors |= {"confidence_head.proj.weight": normal(1, E + 4), "confidence_head.proj.bias": normal(1)}
    tensors |= (
        {"markov_head.gate_proj.weight": normal(4, E + 4), "markov_head.gate_proj.bias": normal(4)}
        if kind == "gated"
        else {}
    )
    tensors |= (
        {"markov_head.joint_proj.weight": normal(12, 8 + E), "markov_head.joint_proj.bias": normal(12)}
        if kind == "rnn"
        else {}
    )
    del base["dflash_config"]
    return base | dict(
        architectures=["Qwen3DSparkModel"],
        block_size=7,
        mask_token_id=60,
        target_layer_ids=[1, 3],
        num_anchors=512,
        markov_rank=4,
        markov_head_type=kind,
        enable_confidence_head=True,
        confidence_head_with_markov=True,
    ) | raw, tensors


def assistant(clusters: int = 0, **raw):
    """An assistant of Gemma 4 with a layer of each kind, of width 16."""
    W, heads = 16, {0: D, 1: 2 * D}
    text = dict(
        model_type="gemma4_text",
        vocab_size=V,
        hidden_size=W,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=H,
        num_key_value_heads=K,
        head_dim=D,
        per_layer_config={"1": {"head_dim": 2 * D}},
        layer_types=["sliding_attention", "full_attention"],
        sliding_window=16,
        num_kv_shared_layers=2,
        hidden_size_per_layer_input=0,
        vocab_size_per_layer_input=0,
        tie_word_embeddings=True,
    )
    tensors = {"pre_projection.weight": normal(W, 2 * E), "post_projection.weight": normal(E, W)}
    tensors |= {"model.embed_tokens.weight": normal(V, W), "model.norm.weight": normal(W)}
    norms = ("input", "post_attention", "pre_feedforward", "post_feedforward")
    for i, size in heads.items():
        parts = {f"{norm}_layernorm.weight": normal(W) for norm in norms} | {"layer_scalar": normal(1)}
        parts |= {"self_attn.q_proj.weight": normal(H * size, W), "self_attn.q_norm.weight": normal(size)}
        parts |= {"self_attn.o_proj.weight": normal(W, H * size), "mlp.down_proj.weight": normal(W, 24)}
        parts |= {f"mlp.{x}_proj.weight": normal(24, W) for x in ("gate", "up")}
        tensors |= {f"model.layers.{i}.{name}": tensor for name, tensor in parts.items()}
    if clusters:
        tensors |= {"masked_embedding.centroids.weight": normal(clusters, W)}
        tensors |= {"masked_embedding.token_ordering": RNG.permutation(V)}
    own = dict(use_ordered_embeddings=clusters > 0, num_centroids=clusters or 2048, centroid_intermediate_top_k=1)
    return dict(
        model_type="gemma4_assistant",
        architectures=["Gemma4AssistantForCausalLM"],
        image_token_id=60,
        backbone_hidden_size=E,
        tie_word_embeddings=True,
        dtype="float32",
        text_config=text,
    ) | own | raw, tensors


MTP = {
    "mtp": ("mtp", "mtp.layers.0", "fc", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"),
    "deepseek": (f"model.layers.{L}", f"model.layers.{L}", "eh_proj", "enorm", "hnorm", "shared_head.norm"),
    "mimo": (
        "model.mtp_layers.0",
        "model.mtp_layers.0",
        "input_proj",
        "token_layernorm",
        "hidden_layernorm",
        "final_layernorm",
    ),
}


def mtp(layout, modules=1, **raw):
    _, _, join, *norms = MTP[layout]
    tensors = {}
    for k in range(modules):
        prefix, first = of_module(MTP[layout][0], k), of_module(MTP[layout][1], k)
        tensors |= {f"{prefix}.{join}.weight": normal(E, 2 * E)} | {
            f"{prefix}.{norm}.weight": normal(E) for norm in norms
        }
        tensors |= layer(first, bias=layout == "mimo")
        if layout == "deepseek":
            tensors |= {
                f"{prefix}.embed_tokens.weight": normal(V, E),
                f"{prefix}.shared_head.head.weight": normal(V, E),
            }
    family = dict(model_type="mimo", attention_bias=True) if layout == "mimo" else {}
    return LLAMA | dict(num_hidden_layers=L, num_nextn_predict_layers=modules) | family | raw, tensors


def of_module(prefix: str, k: int) -> str:
    """How the names of the k-th module begin, where those of the first begin with ``prefix``."""
    return re.sub(r"\d+$", lambda first: str(int(first[0]) + k), prefix)
