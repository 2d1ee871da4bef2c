"""Checkpoints of heads: every published layout written by hand, read, written again; every trap and refusal; torch files that lie."""

import json
import re
from types import SimpleNamespace

import jax
import ml_dtypes
import numpy as np
import pytest
from conftest import language_model, tiny_model
from flax import nnx
from safetensors.numpy import load_file, save_file
from torch_files import torch_file

import specjax
from specjax import load_drafter, save_head
from specjax.checkpoints import hub
from specjax.checkpoints.heads import chosen
from specjax.checkpoints.layouts import default
from specjax.checkpoints.tensors import load_model, save_model
from specjax.errors import CheckpointError, ConfigError, RequestError
from specjax.heads import Head, MtpConfig, MtpHead
from specjax.parallel import make_mesh

E, F, H, K, D, V, L, KNOWN = 32, 48, 4, 2, 8, 61, 6, 20
LLAMA = dict(
    model_type="llama", vocab_size=V, hidden_size=E, intermediate_size=F, num_hidden_layers=1, num_attention_heads=H, num_key_value_heads=K,
    head_dim=D, max_position_embeddings=256, rms_norm_eps=1e-5, rope_theta=5e5, torch_dtype="float32",
)  # fmt: skip
RNG = np.random.default_rng(0)


@pytest.fixture(scope="module")
def deep():
    return language_model(tiny_model(num_layers=L), "deep")


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
    tensors |= {"mlp.gate_proj.weight": normal(F, E), "mlp.up_proj.weight": normal(F, E), "mlp.down_proj.weight": normal(E, F)}
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}


def mapping() -> dict:
    """A draft vocabulary as published: offsets, and which tokens it holds."""
    tokens = np.sort(RNG.permutation(V)[:KNOWN])
    return {"d2t": tokens - np.arange(KNOWN), "t2d": np.isin(np.arange(V), tokens)}


def same_layer(module, tensors: dict, prefix: str) -> None:
    """Our stacked parameters against the rows of the file: for each key head its queries, its key, its value."""
    q, k, v = (tensors[f"{prefix}.self_attn.{x}_proj.weight"] for x in "qkv")
    G = H // K
    stacked = [np.concatenate([q[i * G * D : (i + 1) * G * D], k[i * D : (i + 1) * D], v[i * D : (i + 1) * D]]) for i in range(K)]
    same(module.qkv, np.concatenate(stacked))
    if f"{prefix}.self_attn.q_proj.bias" in tensors:
        q, k, v = (tensors[f"{prefix}.self_attn.{x}_proj.bias"] for x in "qkv")
        same(
            module.qkv_bias,
            np.concatenate([np.r_[q[i * G * D : (i + 1) * G * D], k[i * D : (i + 1) * D], v[i * D : (i + 1) * D]] for i in range(K)]),
        )
    same(module.gate_up, np.concatenate([tensors[f"{prefix}.mlp.gate_proj.weight"], tensors[f"{prefix}.mlp.up_proj.weight"]]))
    names = {
        "out": "self_attn.o_proj",
        "down": "mlp.down_proj",
        "mlp_norm": "post_attention_layernorm",
        "attention_norm": "input_layernorm",
    }
    names |= {"q_norm": "self_attn.q_norm", "k_norm": "self_attn.k_norm", "hidden_norm": "hidden_norm"}
    for ours, theirs in names.items():
        if f"{prefix}.{theirs}.weight" in tensors:
            same(getattr(module, ours), tensors[f"{prefix}.{theirs}.weight"])
        else:
            assert getattr(module, ours, None) is None


def same(parameter, tensor) -> None:
    np.testing.assert_array_equal(np.asarray(parameter[...]), tensor)


def write(directory, raw: dict, tensors: dict, file: str = "model.safetensors"):
    directory.mkdir(exist_ok=True, parents=True)
    if file.endswith(".safetensors"):
        save_file(tensors, directory / file)
    else:
        (directory / file).write_bytes(torch_file(tensors))
    (directory / "config.json").write_text(json.dumps(raw))
    return directory


def eagle(**raw):
    tensors = {"fc.weight": normal(E, 2 * E), "fc.bias": normal(E), "embed_tokens.weight": normal(V, E)} | layer("layers.0", norm=False)
    return LLAMA | dict(architectures=["LlamaForCausalLM"]) | raw, tensors


def eagle3(prefix="midlayer", **raw):
    tensors = {"fc.weight": normal(E, 3 * E), "norm.weight": normal(E), "lm_head.weight": normal(KNOWN, E)} | mapping()
    tensors |= layer(prefix, inputs=2) | {f"{prefix}.hidden_norm.weight": normal(E)}
    return LLAMA | dict(architectures=["LlamaForCausalLMEagle3"], draft_vocab_size=KNOWN) | raw, tensors


def parallel(**raw):
    base, tensors = eagle3()
    return base | dict(parallel_drafting=True, mask_token_id=60) | raw, tensors | {"mask_hidden": normal(1, 1, 3 * E)}


def speculators(fc_norm=False, norm_before_fc=False, **raw):
    _, tensors = eagle3("layers.0")
    tensors |= {"embed_tokens.weight": normal(V, E)}
    tensors |= {f"fc_norm.{i}.weight": normal(E) for i in range(3) if fc_norm}
    tensors |= {"input_norm.weight": normal(3 * E)} if norm_before_fc else {}
    nested = {k: v for k, v in LLAMA.items() if k not in ("rope_theta", "torch_dtype")} | dict(
        rope_parameters=dict(rope_theta=7e5, rope_type="default")
    )
    return dict(
        architectures=["Eagle3Speculator"], speculators_model_type="eagle3", speculators_version="0.3.0", transformer_layer_config=nested,
        speculators_config=dict(algorithm="eagle3", verifier=dict(name_or_path="x")), draft_vocab_size=KNOWN, norm_before_residual=True,
        fc_norm=fc_norm, norm_before_fc=norm_before_fc, torch_dtype="float32", eagle_aux_hidden_state_layer_ids=[1, 2, 4],
    ) | raw, tensors  # fmt: skip


def medusa(blocks=1, prefix="", **raw):
    tensors = {
        f"{prefix}{k}.{j}.linear.{x}": normal(*((E, E) if x == "weight" else (E,)))
        for k in range(5)
        for j in range(blocks)
        for x in ("weight", "bias")
    }
    tensors |= {f"{prefix}{k}.{blocks}.weight": normal(V, E) for k in range(5)}
    return dict(medusa_num_heads=2, medusa_num_layers=blocks, base_model_name_or_path="x", torch_dtype="float32") | raw, tensors


def hydra(blocks=1, **raw):
    tensors = {f"hydra_lm_head.{k}.{x}": normal(*((V, E) if x == "weight" else (V,))) for k in range(3) for x in ("weight", "bias")}
    for k in range(3):
        for part in ("linear", "res_connection"):
            tensors |= {f"hydra_mlp.{k}.0.{part}.weight": normal(E, (k + 2) * E), f"hydra_mlp.{k}.0.{part}.bias": normal(E)}
        for j in range(1, blocks):
            tensors |= {f"hydra_mlp.{k}.{j}.linear.weight": normal(E, E), f"hydra_mlp.{k}.{j}.linear.bias": normal(E)}
    tensors |= {"input_embed_fn.weight": normal(V, E)}
    return dict(
        hydra_num_heads=3, hydra_num_layers=blocks, hydra_head_arch="mlp", grounded_heads=True, torch_dtype="float32"
    ) | raw, tensors


def hydra_prefixed(blocks=2, **raw):
    """Hydra++ as its authors write it: dropouts take numbers, and the blocks after the first are one, written several times."""
    base, plain = hydra(blocks + 1)
    tensors = {"input_embed_fn.weight": plain["input_embed_fn.weight"], "prefix_embeding_layer.norm.weight": normal(E)}
    tensors |= layer("prefix_embeding_layer.layers.0")
    for name, tensor in plain.items():
        part, *rest = name.split(".")
        if part == "hydra_lm_head":
            tensors[f"{part}.{rest[0]}.1.{rest[1]}"] = tensor
        elif part == "hydra_mlp":
            tensors[".".join([part, rest[0], str(2 * int(rest[1]) + 1), *rest[2:]])] = tensor
    tensors |= {name.replace(".5.", ".3."): tensor for name, tensor in tensors.items() if name.startswith("hydra_mlp") and ".5." in name}
    return base | dict(hydra_head_arch="prefix-mlp", hydra_num_layers=blocks + 1, hidden_state_offset=0) | raw, tensors


def dflash(layers=2, own=False, **raw):
    tensors = {"fc.weight": normal(E, 2 * E), "hidden_norm.weight": normal(E), "norm.weight": normal(E)}
    for i in range(layers):
        tensors |= layer(f"layers.{i}", qk_norm=True)
    tensors |= {"embed_tokens.weight": normal(V, E), "lm_head.weight": normal(V, E)} if own else {}
    base = dict(model_type="qwen3", architectures=["DFlashDraftModel"], num_hidden_layers=layers, block_size=8, num_target_layers=L)
    windows = dict(layer_types=["full_attention", "sliding_attention"], sliding_window=16, use_sliding_window=True)
    return LLAMA | base | windows | dict(dflash_config=dict(mask_token_id=60, target_layer_ids=[1, 3])) | raw, tensors


def dspark(kind="vanilla", **raw):
    base, tensors = dflash(own=True)
    tensors |= {"markov_head.markov_w1.weight": normal(V, 4), "markov_head.markov_w2.weight": normal(V, 4)}
    tensors |= {"confidence_head.proj.weight": normal(1, E + 4), "confidence_head.proj.bias": normal(1)}
    tensors |= {"markov_head.gate_proj.weight": normal(4, E + 4), "markov_head.gate_proj.bias": normal(4)} if kind == "gated" else {}
    tensors |= {"markov_head.joint_proj.weight": normal(12, 8 + E), "markov_head.joint_proj.bias": normal(12)} if kind == "rnn" else {}
    del base["dflash_config"]
    return base | dict(
        architectures=["Qwen3DSparkModel"], block_size=7, mask_token_id=60, target_layer_ids=[1, 3], num_anchors=512, markov_rank=4,
        markov_head_type=kind, enable_confidence_head=True, confidence_head_with_markov=True,
    ) | raw, tensors  # fmt: skip


MTP = {
    "mtp": ("mtp", "mtp.layers.0", "fc", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"),
    "deepseek": (f"model.layers.{L}", f"model.layers.{L}", "eh_proj", "enorm", "hnorm", "shared_head.norm"),
    "mimo": ("model.mtp_layers.0", "model.mtp_layers.0", "input_proj", "token_layernorm", "hidden_layernorm", "final_layernorm"),
}


def mtp(layout, modules=1, **raw):
    _, _, join, *norms = MTP[layout]
    tensors = {}
    for k in range(modules):
        prefix, first = of_module(MTP[layout][0], k), of_module(MTP[layout][1], k)
        tensors |= {f"{prefix}.{join}.weight": normal(E, 2 * E)} | {f"{prefix}.{norm}.weight": normal(E) for norm in norms}
        tensors |= layer(first, bias=layout == "mimo")
        if layout == "deepseek":
            tensors |= {f"{prefix}.embed_tokens.weight": normal(V, E), f"{prefix}.shared_head.head.weight": normal(V, E)}
    family = dict(model_type="mimo", attention_bias=True) if layout == "mimo" else {}
    return LLAMA | dict(num_hidden_layers=L, num_nextn_predict_layers=modules) | family | raw, tensors


def of_module(prefix: str, k: int) -> str:
    """How the names of the k-th module begin, where those of the first begin with ``prefix``."""
    return re.sub(r"\d+$", lambda first: str(int(first[0]) + k), prefix)


def mtp_pairs(layout, modules=1) -> dict:
    pairs = {}
    for k in range(modules):
        prefix, _, *parts = (of_module(MTP[layout][0], k), *MTP[layout][1:])
        ours = dict(zip(("join", "embedding_norm", "hidden_norm", "norm"), parts)) | {"embed": "embed_tokens", "head": "shared_head.head"}
        pairs |= {f"modules.{k}.{name}": f"{prefix}.{part}.weight" for name, part in ours.items()}
    return pairs


def no_pairs(tensors: dict) -> dict:
    return {}


EAGLE3 = {"fc": "fc.weight", "norm": "norm.weight", "head": "lm_head.weight", "draft_to_target": "d2t", "embed": "embed_tokens.weight"}
BLOCK = {
    "fc": "fc.weight", "hidden_norm": "hidden_norm.weight", "norm": "norm.weight", "embed": "embed_tokens.weight", "head": "lm_head.weight",
    "markov.first": "markov_head.markov_w1.weight", "markov.second": "markov_head.markov_w2.weight", "markov.gate": "markov_head.gate_proj.weight",
    "markov.gate_bias": "markov_head.gate_proj.bias", "confidence": "confidence_head.proj.weight", "confidence_bias": "confidence_head.proj.bias",
}  # fmt: skip
HYDRA = {"blocks.0.linear": "hydra_mlp.{k}.0.linear", "blocks.0.residual": "hydra_mlp.{k}.0.res_connection", "head": "hydra_lm_head.{k}"}
PUBLISHED = {
    "eagle": (eagle, {"fc": "fc.weight", "fc_bias": "fc.bias", "embed": "embed_tokens.weight"}, ["layers.0"]),
    "eagle3": (eagle3, EAGLE3, ["midlayer"]),
    "eagle3-parallel": (parallel, EAGLE3 | {"mask_hidden": "mask_hidden"}, ["midlayer"]),
    "speculators": (lambda: speculators(fc_norm=True), EAGLE3 | {f"fc_norms.{i}": f"fc_norm.{i}.weight" for i in range(3)}, ["layers.0"]),
    "speculators-parallel": (
        lambda: (speculators(parallel_drafting=True, mask_token_id=60)[0], speculators()[1] | {"mask_hidden": normal(1, 1, 3 * E)}),
        EAGLE3 | {"mask_hidden": "mask_hidden"},
        ["layers.0"],
    ),
    "speculators-norm": (lambda: speculators(norm_before_fc=True), EAGLE3 | {"input_norm": "input_norm.weight"}, ["layers.0"]),
    "medusa": (medusa, {f"heads.{k}.{x}": y for k in range(5) for x, y in {"blocks.0.linear": f"{k}.0.linear.weight", "blocks.0.linear_bias": f"{k}.0.linear.bias", "head": f"{k}.1.weight"}.items()}, []),
    "medusa-2": (lambda: medusa(2), {"heads.3.blocks.1.linear": "3.1.linear.weight", "heads.4.head": "4.2.weight"}, []),
    "hydra": (
        hydra,
        {f"heads.{k}.{x}{'_bias' * b}": f"{y.format(k=k)}.{'bias' if b else 'weight'}" for k in range(3) for x, y in HYDRA.items() for b in (0, 1)} | {"embed": "input_embed_fn.weight"},
        [],
    ),
    "hydra-2": (lambda: hydra(2), {"heads.1.blocks.1.linear": "hydra_mlp.1.1.linear.weight", "heads.2.blocks.0.residual": "hydra_mlp.2.0.res_connection.weight", "embed": "input_embed_fn.weight"}, []),
    "hydra-prefix": (
        hydra_prefixed,
        {f"heads.{k}.head{'_bias' * b}": f"hydra_lm_head.{k}.1.{'bias' if b else 'weight'}" for k in range(3) for b in (0, 1)}
        | {f"heads.{k}.blocks.{j}.{x}": f"hydra_mlp.{k}.{2 * j + 1}.{y}.weight" for k in range(3) for j in range(3) for x, y in (("linear", "linear"), ("residual", "res_connection"))}
        | {"embed": "input_embed_fn.weight", "norm": "prefix_embeding_layer.norm.weight"},
        ["prefix_embeding_layer.layers.0"],
    ),
    "dflash": (dflash, BLOCK, ["layers.0", "layers.1"]),
    "dspark": (dspark, BLOCK, ["layers.0", "layers.1"]),
    "dspark-gated": (lambda: dspark("gated"), BLOCK, ["layers.0", "layers.1"]),
    "dspark-rnn": (
        lambda: dspark("rnn"),
        BLOCK | {"markov.gate": "markov_head.joint_proj.weight", "markov.gate_bias": "markov_head.joint_proj.bias"},
        ["layers.0", "layers.1"],
    ),
    **{
        f"{name}-{n}" if n > 1 else name: (lambda name=name, n=n: mtp(name, n), mtp_pairs(name, n), [of_module(MTP[name][1], k) for k in range(n)])
        for name, n in [*((name, 1) for name in MTP), ("deepseek", 2), ("mimo", 3)]
    },
}  # fmt: skip
"""For each layout what is written, our parameters and the tensors that they are, and how the decoder layers' names begin."""


def parameters(module) -> dict:
    return {".".join(map(str, path)): np.asarray(value[...]) for path, value in nnx.to_flat_state(nnx.state(module))}


def same_heads(a: Head, b: Head) -> bool:
    one, two = parameters(a.module), parameters(b.module)
    return a.config == b.config and one.keys() == two.keys() and all(one[x].tobytes() == two[x].tobytes() for x in one)


@pytest.mark.parametrize("layout", PUBLISHED)
def test_a_published_layout_is_read_and_written(tmp_path, deep, layout):
    made, pairs, layers = PUBLISHED[layout]
    raw, tensors = made()
    head = load_drafter(write(tmp_path / "published", raw, tensors), deep)
    name = {"dspark": "dflash"}.get(layout.split("-")[0], layout.split("-")[0])
    assert isinstance(head, Head) and head.layout == name
    found = parameters(head.module)
    for ours, theirs in pairs.items():
        if theirs in tensors:
            np.testing.assert_array_equal(found[ours], tensors[theirs], err_msg=ours)
        else:
            assert ours not in found
    assert {x.split(".")[0] for x in found} <= {x.split(".")[0] for x in pairs} | {"layers", "heads"}
    modules = getattr(head.module, "modules", [head.module])
    found_layers = [one for module in modules for one in getattr(module, "layers", [])]
    for one, prefix in zip(found_layers, layers, strict=True):
        same_layer(one, tensors, prefix)

    save_head(head, tmp_path / "saved")
    (file,) = (tmp_path / "saved").glob("*.safetensors")
    saved = load_file(file)
    assert saved.keys() == tensors.keys()
    assert all(saved[x].dtype == tensors[x].dtype and saved[x].tobytes() == tensors[x].tobytes() for x in tensors)
    again = load_drafter(tmp_path / "saved", deep)
    assert hash(again.config) == hash(head.config)
    assert same_heads(head, again) and again.layout == name
    save_head(head, tmp_path / "default", default(head.config))
    assert same_heads(head, load_drafter(tmp_path / "default", deep))


def config_of(tmp_path, target, made, **changes):
    raw, tensors = made(**changes)
    return load_drafter(write(tmp_path / str(len(list(tmp_path.iterdir()))), raw, tensors), target).config


def test_layers_are_named_by_outputs_or_inputs(tmp_path, deep):
    of = lambda made, **raw: config_of(tmp_path, deep, made, **raw).taps
    ids = "eagle_aux_hidden_state_layer_ids"
    assert of(eagle3) == (2, 3, 3)  # L // 2 and L - 3 are one for a target of 6
    assert of(eagle3, eagle_config={ids: [0, 2, 4], "use_aux_hidden_state": True}) == (1, 3, 5)
    assert of(eagle3, **{ids: [0, 2, 4]}) == (0, 2, 4)
    assert of(speculators) == (1, 2, 4) and of(speculators, **{ids: None}) == (2, 3, 3)
    assert of(dflash) == of(dspark) == (2, 4)


def test_embeddings_of_a_prefix_layer_that_nothing_reads(tmp_path, deep):
    """Hydra++ writes its prefix layer as a whole language model."""
    raw, tensors = hydra_prefixed()
    one = load_drafter(write(tmp_path / "a", raw, tensors), deep)
    unread = {
        "prefix_embeding_layer.embed_tokens.weight": normal(V, E),
        "prefix_embeding_layer.layers.0.self_attn.rotary_emb.inv_freq": normal(4),
    }
    assert same_heads(one, load_drafter(write(tmp_path / "b", raw, tensors | unread), deep))
    del tensors["prefix_embeding_layer.layers.0.mlp.down_proj.weight"]
    with pytest.raises(CheckpointError, match=r"prefix_embeding_layer\.layers\.0\.mlp\.down_proj\.weight"):
        load_drafter(write(tmp_path / "c", raw, tensors), deep)


def test_options_that_vary(tmp_path, deep):
    of = lambda made, **raw: config_of(tmp_path, deep, made, **raw)
    assert of(eagle).bias and not of(eagle).first_norm and of(eagle).own_embedding
    flags = dict(norm_output=True, norm_before_residual=False)
    assert (
        of(speculators, **flags).norm_output and not of(speculators, **flags).norm_before_residual and of(speculators).norm_before_residual
    )
    assert of(eagle3).layers.rope.theta == 5e5 and of(speculators).layers.rope.theta == 7e5
    nested = {k: v for k, v in speculators()[0]["transformer_layer_config"].items() if k != "rope_parameters"}
    assert of(speculators, transformer_layer_config=nested, rope_theta=9e5).layers.rope.theta == 9e5
    assert of(speculators, transformer_layer_config=nested | dict(rope_theta=8e5)).layers.rope.theta == 8e5
    assert of(medusa).num_heads == 5 and of(lambda: medusa(2)).num_layers == 2
    heads = {name: of(lambda name=name: mtp(name)) for name in MTP}
    assert [heads[x].norm_output for x in MTP] == [True, False, True] and [heads[x].hidden_first for x in MTP] == [False, False, True]
    assert [heads[x].own_head for x in MTP] == [False, True, False] and all(x.normed_features for x in heads.values())
    assert of(lambda: mtp("deepseek", mtp_norm_output=True)).norm_output


def test_places_of_a_block(tmp_path, deep):
    """Which tokens the places say, by the conventions of DFlash, DeepSpec and JetSpec."""
    of = lambda made, **raw: config_of(tmp_path, deep, made, **raw)
    nested = dict(mask_token_id=60, target_layer_ids=[1, 3])
    config = of(dflash)
    assert (config.from_root, config.causal, config.block_size, config.drafts, config.mask_token) == (False, False, 8, 7, 60)
    assert config.layers.windows == (None, 16)
    config = of(dspark)
    assert (config.from_root, config.block_size, config.drafts, config.markov_rank, config.confidence) == (True, 7, 7, 4, True)
    assert config.confidence_markov
    raw, tensors = dspark(confidence_head_with_markov=False)
    config = of(lambda: (raw, tensors | {"confidence_head.proj.weight": normal(1, E)}))
    assert config.confidence and not config.confidence_markov
    config = of(dflash, dflash_config=nested | dict(causal_head=True))
    assert config.causal and not config.from_root and config.drafts == 7
    config = of(dflash, dflash_config=nested | dict(causal_head=True, draft_shift=True))
    assert config.causal and config.from_root and config.drafts == 7
    raw, tensors = dspark()
    inside = nested | {x: raw.pop(x) for x in ("markov_rank", "markov_head_type", "enable_confidence_head")} | dict(projector_type="dspark")
    config = of(lambda: (raw | dict(dflash_config=inside), tensors))  # SpecForge's DSpark keeps DFlash's places
    assert not config.from_root and config.markov_rank == 4 and config.drafts == 6


@pytest.mark.parametrize("options", [dict(causal_head=True), dict(causal_head=True, draft_shift=True), dict(sample_from_anchor=True)])
def test_variants_of_a_block_are_written(tmp_path, deep, options):
    raw, tensors = dflash(dflash_config=dict(mask_token_id=60, target_layer_ids=[1, 3]) | options)
    head = load_drafter(write(tmp_path / "a", raw, tensors), deep)
    save_head(head, tmp_path / "b")
    assert same_heads(head, load_drafter(tmp_path / "b", deep))


def test_a_whole_vocabulary_needs_no_mapping(tmp_path, deep):
    raw, tensors = eagle3(draft_vocab_size=None)
    tensors = {k: v for k, v in tensors.items() if k not in ("d2t", "t2d")} | {"lm_head.weight": normal(V, E)}
    head = load_drafter(write(tmp_path / "a", raw, tensors), deep)
    assert head.config.draft_vocab_size == V and not np.any(head.module.draft_to_target[...])
    zeros = load_drafter(write(tmp_path / "b", raw, tensors | {"d2t": np.zeros(V, np.int64), "t2d": np.ones(V, bool)}), deep)
    save_head(zeros, tmp_path / "c")
    assert same_heads(zeros, head) and same_heads(zeros, load_drafter(tmp_path / "c", deep))
    with pytest.raises(CheckpointError, match="offsets"):  # token numbers, where offsets are meant
        load_drafter(write(tmp_path / "d", raw, tensors | {"d2t": np.arange(V)}), deep)


@pytest.mark.parametrize(
    "spoil, named",
    [
        (lambda d2t, t2d: (d2t + np.arange(KNOWN) + 30, t2d), "outside the vocabulary"),
        (lambda d2t, t2d: (-np.arange(KNOWN), t2d), "two tokens to one"),
        (lambda d2t, t2d: (d2t - 100, t2d), "outside the vocabulary"),
        (lambda d2t, t2d: (d2t, ~t2d), "different tokens"),
        (lambda d2t, t2d: (d2t, t2d[1:]), "different tokens"),
    ],
)
def test_a_wrong_mapping_is_refused(tmp_path, deep, spoil, named):
    raw, tensors = eagle3()
    tensors["d2t"], tensors["t2d"] = spoil(tensors["d2t"], tensors["t2d"])
    with pytest.raises(CheckpointError, match=named):
        load_drafter(write(tmp_path / "a", raw, tensors), deep)


def test_every_fault_is_listed_at_once(tmp_path, deep):
    raw, tensors = eagle3(norm_before_fc=True)
    del tensors["d2t"], tensors["midlayer.self_attn.v_proj.weight"]
    tensors |= {"fc.weight": normal(E, 5 * E), "midlayer.extra.weight": normal(2), "norm.weight": np.ones(E, np.int8)}
    with pytest.raises(CheckpointError) as error:
        load_drafter(write(tmp_path / "a", raw, tensors), deep)
    message = str(error.value)
    for fault in ("d2t is missing", "v_proj.weight is missing", "input_norm.weight is missing", "midlayer.extra.weight is unexpected"):
        assert fault in message
    assert (
        f"fc.weight has shape ({E}, {5 * E}), not ({E}, {3 * E})" in message
        and "norm.weight is of type I8" in message
        and "\n" not in message
    )


def test_every_module_is_whole(tmp_path, deep):
    raw, tensors = mtp("mimo", 3)
    del tensors["model.mtp_layers.2.input_proj.weight"], tensors["model.mtp_layers.1.self_attn.q_proj.bias"]
    tensors |= {"model.mtp_layers.1.final_layernorm.weight": normal(E + 1)}
    with pytest.raises(CheckpointError) as error:
        load_drafter(write(tmp_path / "a", raw, tensors), deep)
    for fault in ("2.input_proj.weight is missing", "1.self_attn.q_proj.bias is missing", f"1.final_layernorm.weight has shape ({E + 1},)"):
        assert fault in str(error.value)


def test_layouts_write_only_what_they_have_names_for(tmp_path, deep):
    """Several modules of one layer, or one of several; without a layout of its own a head gets one that fits."""
    config = MtpConfig(deep.config.replace(num_layers=1, windows=(None,)), L, modules=2)
    head = Head(MtpHead(config, jax.random.key(0)), config, "new")
    save_head(head, tmp_path / "a")
    again = load_drafter(tmp_path / "a", deep)
    assert again.layout == "deepseek" and same_heads(head, again)
    with pytest.raises(ConfigError, match="'mtp' holds one module"):
        save_head(head, tmp_path / "b", "mtp")
    config = MtpConfig(deep.config.replace(num_layers=2, windows=(None, None)), L)
    head = Head(MtpHead(config, jax.random.key(0)), config, "new")
    save_head(head, tmp_path / "c")
    assert same_heads(head, load_drafter(tmp_path / "c", deep))
    with pytest.raises(ConfigError, match="'mimo' holds modules of one decoder layer, not 2"):
        save_head(head, tmp_path / "d", "mimo")


def changed(made, change):
    raw, tensors = made()
    change(raw, tensors)
    return raw, tensors


REFUSED = {
    "speculators type": (lambda: speculators(speculators_model_type="dspark"), "'dspark'"),
    "DFlash 2": (lambda: dflash(architectures=["DFlash2DraftModel"]), "DFlash 2"),
    "P-EAGLE without a mask": (lambda: eagle3(parallel_drafting=True), "'mask_token_id'"),
    "ReDrafter": (lambda: ({}, {"rnn_u.weight": normal(2, 2)}), "ReDrafter"),
    "latent": (lambda: changed(eagle3, lambda raw, t: t.update({"midlayer.self_attn.kv_a_proj_with_mqa.weight": normal(2, 2)})), "latent"),
    "quantised": (lambda: changed(eagle, lambda raw, t: t.update({"fc.weight_scale_inv": normal(2)})), "quantised"),
    "one layer": (lambda: eagle3(eagle_config=dict(use_aux_hidden_state=False)), "use_aux_hidden_state"),
    "eagle option": (lambda: eagle3(eagle_config=dict(surprise=1)), "surprise"),
    "option": (lambda: eagle(logit_scale=0.5), "logit_scale"),
    "nested option": (lambda: dflash(dflash_config=dict(mask_token_id=60, target_layer_ids=[1], conv_group_size=16)), "conv_group_size"),
    "outer option": (lambda: speculators(surprise=1), "surprise"),
    "architecture": (lambda: eagle3(model_type="gpt_oss"), "gpt_oss"),
    "no layer ids": (lambda: dflash(dflash_config=dict(mask_token_id=60)), "target_layer_ids"),
    "no mask": (lambda: dflash(dflash_config=dict(target_layer_ids=[1, 3])), "mask_token_id"),
    "another Markov": (lambda: dspark(markov_head_type="fir"), "'fir'"),
    "shift": (lambda: dflash(dflash_config=dict(mask_token_id=60, target_layer_ids=[1, 3], draft_shift=True)), "draft_shift"),
    "other Hydra": (lambda: hydra(hydra_head_arch="cross-attn"), "'cross-attn'"),
    "earlier states": (lambda: hydra(hidden_state_offset=1), "hidden_state_offset 1"),
    "ungrounded": (lambda: hydra(grounded_heads=False), "grounded_heads"),
    "experts": (lambda: changed(lambda: mtp("deepseek"), lambda raw, t: t.update({f"model.layers.{L}.mlp.experts.0.up_proj.weight": normal(2, 2)})), "mixture of experts"),
    "MTP latent": (lambda: changed(lambda: mtp("deepseek"), lambda raw, t: t.update({"model.embed_tokens.weight": normal(V, E), f"model.layers.{L}.self_attn.kv_a_proj_with_mqa.weight": normal(2, 2)})), "latent"),
    "several modules": (lambda: mtp("mtp", num_nextn_predict_layers=2), "'mtp' holds one module of multi-token prediction, not 2"),
    "several layers": (lambda: mtp("deepseek", mtp_num_hidden_layers=2), "'deepseek' holds modules of one decoder layer, not 2"),
    "another module": (lambda: mtp("deepseek", 2, num_nextn_predict_layers=1), rf"num_nextn_predict_layers is 1.*model\.layers\.{L + 1} beyond"),
    "a third module": (lambda: mtp("mimo", 3, num_nextn_predict_layers=2), r"num_nextn_predict_layers is 2.*mtp_layers\.2 beyond"),
    "Qwen3-Next": (lambda: mtp("mtp", model_type="qwen3_next"), "qwen3_next"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_known_and_not_supported_is_refused_by_name(tmp_path, deep, case):
    made, named = REFUSED[case]
    with pytest.raises(ConfigError, match=named) as error:
        load_drafter(write(tmp_path / "a", *made()), deep)
    assert "\n" not in str(error.value) and str(tmp_path) in str(error.value)


def test_what_is_not_known_is_named(tmp_path, deep):
    with pytest.raises(CheckpointError, match=r"StrangeModel; tensors a\.weight, b\.weight"):
        load_drafter(write(tmp_path / "a", dict(architectures=["StrangeModel"]), {"a.weight": normal(2), "b.weight": normal(2)}), deep)


@pytest.mark.parametrize(
    "layout", ["eagle", "eagle3", "speculators", "medusa", "hydra", "hydra-prefix", "dflash", "mtp", "deepseek", "mimo"]
)
@pytest.mark.parametrize(
    "changes, named", [(dict(hidden_size=64), "width is 32, not 64"), (dict(vocab_size=99), "vocabulary is 61, not 99")]
)
def test_heads_for_another_target_are_refused(tmp_path, deep, layout, changes, named):
    other = SimpleNamespace(model=deep.model, config=deep.config.replace(**changes), name="other")
    with pytest.raises(CheckpointError, match=f"another target than 'other': .*{named}") as error:
        load_drafter(write(tmp_path / "a", *PUBLISHED[layout][0]()), other)
    assert "\n" not in str(error.value)


def test_layers_that_the_target_does_not_have(tmp_path, deep, target):
    for made, named in (
        (dflash, "number of layers is 6, not 2"),
        (lambda: mtp("mtp"), "number of layers is 6, not 2"),
        (eagle3, "layer -1 is read, of 2"),
        (speculators, "layer 4 is read, of 2"),
    ):
        with pytest.raises(CheckpointError, match=named):
            load_drafter(write(tmp_path / "a", *made()), target)
    with pytest.raises(CheckpointError, match="mask token 61"):
        load_drafter(write(tmp_path / "a", *dspark(mask_token_id=V)), deep)
    with pytest.raises(CheckpointError, match="mask token 61"):
        load_drafter(write(tmp_path / "a", *parallel(mask_token_id=V)), deep)
    raw, tensors = eagle3(hidden_size=16, target_hidden_size=E)
    with pytest.raises(CheckpointError, match="16 wide and brings no embeddings"):
        load_drafter(write(tmp_path / "a", raw, tensors), deep)


def test_saving_in_a_layout_of_other_heads(tmp_path, deep):
    head = load_drafter(write(tmp_path / "a", *eagle()), deep)
    for layout in ("medusa", "nothing"):
        with pytest.raises(RequestError, match=f"{layout!r} cannot hold a head of kind 'eagle'; use one of eagle$"):
            save_head(head, tmp_path / "b", layout)


def test_another_dtype_and_a_mesh(tmp_path, deep):
    directory = write(tmp_path / "a", *eagle3())
    half = load_drafter(directory, deep, "bfloat16")
    assert {str(x.dtype) for x in jax.tree.leaves(nnx.state(half.module))} == {"bfloat16", "int32"}
    save_head(half, tmp_path / "b")
    assert load_file(tmp_path / "b/model.safetensors")["fc.weight"].dtype == ml_dtypes.bfloat16
    assert json.loads((tmp_path / "b/config.json").read_text())["dtype"] == "bfloat16"
    save_model(deep.model, tmp_path / "target")
    split = language_model(load_model(tmp_path / "target", mesh=make_mesh(data=2, model=2)), "deep")
    head = load_drafter(directory, split)
    assert same_heads(head, load_drafter(directory, deep))
    assert head.module.layers[0].qkv[...].addressable_shards[0].data.shape[0] * 2 == head.module.layers[0].qkv.shape[0]


def test_heads_inside_a_language_model(tmp_path):
    """Its checkpoint is read as the model, which passes over the heads, and as the head, which passes over the model."""
    model = tiny_model(num_layers=L, family="qwen2", qkv_bias=True, windows=(None,) * L)
    target = language_model(model, "target")
    specjax.save(target, tmp_path / "whole")
    raw, tensors = json.loads((tmp_path / "whole/config.json").read_text()), load_file(tmp_path / "whole/model.safetensors")
    for added, changes in (
        (mtp("mimo")[1], dict(model_type="mimo", num_nextn_predict_layers=1)),
        (medusa(prefix="medusa_head.")[1], {}),
        (mtp("deepseek", 2)[1], dict(num_nextn_predict_layers=2)),
    ):
        directory = write(tmp_path / "whole", raw | changes, tensors | added)
        loaded = load_model(directory)
        assert parameters(loaded).keys() == parameters(model).keys() and loaded.config == target.config
        head = load_drafter(directory, target)
        assert isinstance(head, Head)
        join = {"mtp": "input_proj.weight", "medusa": "medusa_head.0.0.linear.weight", "deepseek": "eh_proj.weight"}
        kind = "deepseek" if head.layout == "deepseek" else head.config.kind
        ours = head.module.modules[0].join if head.config.kind == "mtp" else head.module.heads[0].blocks[0].linear
        same(ours, next(tensor for name, tensor in added.items() if name.endswith(join[kind])))
    write(tmp_path / "whole", raw, tensors)
    plain = load_drafter(tmp_path / "whole", target)
    assert isinstance(plain, specjax.LanguageModel) and plain.config == target.config


def test_a_missing_head_between_others(tmp_path, deep):
    raw, tensors = medusa()
    del tensors["2.0.linear.weight"], tensors["2.0.linear.bias"], tensors["2.1.weight"]
    with pytest.raises(CheckpointError, match=r"2\.0\.linear\.bias is missing.*2\.1\.weight is missing"):
        load_drafter(write(tmp_path / "a", raw, tensors), deep)


def test_names(tmp_path, monkeypatch, deep):
    """Embedded heads are found by name and by their target's, and are no language models."""
    head = load_drafter(write(tmp_path / "deep-eagle3", *eagle3()), deep)
    specjax.save(deep, tmp_path / "deep")
    monkeypatch.setattr(hub, "ZOO", tmp_path)
    assert hub.zoo() == ["deep", "deep-eagle3"] and specjax.embedded() == ["deep"]
    assert same_heads(load_drafter("deep-eagle3", deep), head)
    assert isinstance(load_drafter("deep", deep), specjax.LanguageModel)
    for name in ("deep-eagle3", tmp_path / "deep-eagle3"):
        with pytest.raises(CheckpointError, match=r"deep-eagle3' is a head \(eagle3\), not a language model"):
            specjax.load(name)
    assert same_heads(chosen(deep, (), ("eagle", "eagle3"), "x"), head)
    assert chosen(deep, (head, deep), ("eagle3",), "x") is head
    with pytest.raises(RequestError, match="draft 'deep' is a language model; name another draft"):
        chosen(deep, (deep, head), ("eagle3",), "x")
    with pytest.raises(RequestError, match="method 'eagle2' drafts with a trained head of kind eagle, and 'deep' comes with none"):
        chosen(deep, (), ("eagle",), "eagle2")
    with pytest.raises(RequestError, match="deep-eagle3' is one of kind 'eagle3'; name another draft"):
        chosen(deep, (head,), ("eagle",), "eagle2")
    with pytest.raises(RequestError, match="draft 'deep-eagle3' is a head of kind 'eagle3'; method 'draft_model' needs a language model"):
        specjax.Generator(deep, "draft_model", "deep-eagle3")
    assert specjax.Generator(deep, draft="deep-eagle3", tree_top_k=4).method == "eagle3"


# Torch files.


@pytest.mark.parametrize("layout, file", [("eagle", "pytorch_model.bin"), ("medusa", "medusa_lm_head.pt"), ("hydra", "hydra_lm_head.pt")])
def test_a_torch_file_is_read(tmp_path, deep, layout, file):
    raw, tensors = PUBLISHED[layout][0]()
    made = load_drafter(write(tmp_path / "a", raw, tensors, file), deep)
    assert same_heads(made, load_drafter(write(tmp_path / "b", raw, tensors), deep))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_what_torch_itself_writes(tmp_path, deep, dtype):
    """Ordered and plain dictionaries, parameters, views of a shared storage, transposed tensors, integers and truth values."""
    torch = pytest.importorskip("torch", reason="its own files need torch; test_a_torch_file_is_read reads such files without it")
    raw, tensors = eagle3()
    state = {name: torch.tensor(x).to(getattr(torch, dtype)) if x.dtype == np.float32 else torch.tensor(x) for name, x in tensors.items()}
    want = {name: x.to(torch.float32).numpy() if x.is_floating_point() else x.numpy() for name, x in state.items()}
    both = torch.cat([state["norm.weight"], state["midlayer.hidden_norm.weight"]])
    state |= {"norm.weight": both[:E], "midlayer.hidden_norm.weight": both[E:]}
    state["fc.weight"] = torch.nn.Parameter(state["fc.weight"])
    state["lm_head.weight"] = state["lm_head.weight"].T.contiguous().T
    head = load_drafter(write(tmp_path / "b", raw, want), deep)
    (tmp_path / "a").mkdir()
    (tmp_path / "a/config.json").write_text(json.dumps(raw))
    module = torch.nn.Module()  # whose state is an ordered dictionary with attributes
    module.register_buffer("x", torch.ones(2))
    ordered = module.state_dict()
    ordered.update(state)
    del ordered["x"]
    for saved in (state, ordered):
        torch.save(saved, tmp_path / "a/pytorch_model.bin")
        assert same_heads(load_drafter(tmp_path / "a", deep), head)


def test_a_file_that_is_not_whole(tmp_path, deep):
    raw, tensors = eagle()
    directory = write(tmp_path / "a", raw, tensors, "pytorch_model.bin")
    whole = (directory / "pytorch_model.bin").read_bytes()
    damaged = {
        "truncated": [whole[:keep] for keep in (0, 5, 3000, len(whole) - 7)] + [b"\x80\x02" + whole[100:200]],
        "corrupt|bytes|holds no|beyond|missing|opcode": [whole[:2000] + whole[2064:]],
        r"holds no data\.pkl": [torch_file(tensors, folder="a/b")],
        "compressed": [torch_file(tensors, compressed=True)],
        "little-endian": [torch_file(tensors, order=b"big")],
    }
    for named, files in damaged.items():
        for content in files:
            (directory / "pytorch_model.bin").write_bytes(content)
            with pytest.raises(CheckpointError, match=named) as error:
                load_drafter(directory, deep)
            assert "\n" not in str(error.value)
    (directory / "pytorch_model.bin").unlink()
    with pytest.raises(CheckpointError, match=r"model\.safetensors is missing"):
        load_drafter(directory, deep)
