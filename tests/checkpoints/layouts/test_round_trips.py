"""Every layout: a checkpoint in its published form is read, written, and read again."""

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file
from support.head_cases import MADE, PUBLISHED, parameters, same_heads, same_layer
from support.published_heads import DEEP, MTP, XPRESS, E, L, V, of_module, write
from support.published_speculators import XPRESS as SPEC_XPRESS

from specjax import load_drafter, save_head
from specjax.checkpoints.layouts import LAYOUTS, default_layout
from specjax.errors import ConfigError
from specjax.heads import KINDS, EagleConfig, Head, MedusaConfig, MtpConfig, MtpHead

EAGLE3 = {
    "fc": "fc.weight",
    "norm": "norm.weight",
    "head": "lm_head.weight",
    "draft_to_target": "d2t",
    "embed": "embed_tokens.weight",
    "mask_hidden": "mask_hidden",
    "input_norm": "input_norm.weight",
    **{f"fc_norms.{i}": f"fc_norm.{i}.weight" for i in range(3)},
}
BLOCK = {
    "fc": "fc.weight",
    "hidden_norm": "hidden_norm.weight",
    "norm": "norm.weight",
    "embed": "embed_tokens.weight",
    "head": "lm_head.weight",
    "draft_to_target": "d2t",
    "markov.first": "markov_head.markov_w1.weight",
    "markov.second": "markov_head.markov_w2.weight",
    "confidence": "confidence_head.proj.weight",
    "confidence_bias": "confidence_head.proj.bias",
}
GATES = {"gated": "gate_proj", "rnn": "joint_proj"}
HYDRA = {
    "blocks.0.linear": "hydra_mlp.{k}.0.linear",
    "blocks.0.residual": "hydra_mlp.{k}.0.res_connection",
    "head": "hydra_lm_head.{k}",
}
MEDUSA = {"blocks.0.linear": "{k}.0.linear.weight", "blocks.0.linear_bias": "{k}.0.linear.bias", "head": "{k}.1.weight"}


def block(gate: str = "") -> tuple:
    """The tensors of a block head with a Markov head of kind ``gate``."""
    gates = {
        f"markov.gate{ours}": f"markov_head.{GATES[gate]}.{theirs}"
        for ours, theirs in (("", "weight"), ("_bias", "bias"))
        if gate
    }
    return BLOCK | gates, ["layers.0", "layers.1"]


SELECTOR = {
    "markov.first": "candidate_selector.predecessor_codebook",
    "markov.second": "candidate_selector.successor_codebook",
    "markov.gate": "candidate_selector.hidden_projection.weight",
}
CONVOLUTIONS = {
    f"layers.{i}.{ours}_conv.{x}": f"layers.{i}.{theirs}_conv.{y}"
    for i in range(2)
    for ours, theirs in (("mixer", "attention"), ("mlp", "mlp"))
    for x, y in (("base", "base_kernel"), ("kernels", "kernel_projection.weight"))
}


def refiner(prefix: str, names: tuple) -> dict:
    ours = ("first", "own", "mean", "join", "mix", "gate", "up", "down", "second")
    return {f"refiner.{x}": f"{prefix}.{y}" for x, y in zip(ours, names, strict=True)}


ASSISTANT = {
    "enter": "pre_projection.weight",
    "leave": "post_projection.weight",
    "norm": "model.norm.weight",
    "head": "model.embed_tokens.weight",
    "centroids": "masked_embedding.centroids.weight",
    "order": "masked_embedding.token_ordering",
} | {
    f"layers.{i}.{ours}": f"model.layers.{i}.{theirs}"
    for i in range(2)
    for ours, theirs in {
        "mixer.qkv": "self_attn.q_proj.weight",
        "mixer.q_norm": "self_attn.q_norm.weight",
        "mixer.out": "self_attn.o_proj.weight",
        "mixer_norm": "input_layernorm.weight",
        "mixer_out_norm": "post_attention_layernorm.weight",
        "mlp_norm": "pre_feedforward_layernorm.weight",
        "mlp_out_norm": "post_feedforward_layernorm.weight",
        "mlp.down": "mlp.down_proj.weight",
        "scalar": "layer_scalar",
    }.items()
}


def mtp(layout: str, modules: int = 1) -> tuple:
    pairs = {}
    for k in range(modules):
        prefix, _, *parts = (of_module(MTP[layout][0], k), *MTP[layout][1:])
        ours = dict(zip(("join", "embedding_norm", "hidden_norm", "norm"), parts)) | {
            "embed": "embed_tokens",
            "head": "shared_head.head",
        }
        pairs |= {f"modules.{k}.{name}": f"{prefix}.{part}.weight" for name, part in ours.items()}
    return pairs, [of_module(MTP[layout][1], k) for k in range(modules)]


HYDRA_PREFIXED = (
    {
        f"heads.{k}.head{'_bias' * b}": f"hydra_lm_head.{k}.1.{'bias' if b else 'weight'}"
        for k in range(3)
        for b in (0, 1)
    }
    | {
        f"heads.{k}.blocks.{j}.{x}": f"hydra_mlp.{k}.{2 * j + 1}.{y}.weight"
        for k in range(3)
        for j in range(3)
        for x, y in (("linear", "linear"), ("residual", "res_connection"))
    }
    | {"embed": "input_embed_fn.weight", "norm": "prefix_embeding_layer.norm.weight"}
)
PAIRS = {
    "eagle": ({"fc": "fc.weight", "fc_bias": "fc.bias", "embed": "embed_tokens.weight"}, ["layers.0"]),
    **{case: (EAGLE3, ["midlayer"]) for case in ("eagle3", "eagle3, parallel")},
    **{case: (EAGLE3, ["layers.0"]) for case in MADE if case.split(",")[0] in ("speculators", "speculators-peagle")},
    "medusa": ({f"heads.{k}.{x}": y.format(k=k) for k in range(5) for x, y in MEDUSA.items()}, []),
    "medusa, 2 blocks": ({"heads.3.blocks.1.linear": "3.1.linear.weight", "heads.4.head": "4.2.weight"}, []),
    "hydra": (
        {
            f"heads.{k}.{x}{'_bias' * b}": f"{y.format(k=k)}.{'bias' if b else 'weight'}"
            for k in range(3)
            for x, y in HYDRA.items()
            for b in (0, 1)
        }
        | {"embed": "input_embed_fn.weight"},
        [],
    ),
    "hydra, 2 blocks": (
        {
            "heads.1.blocks.1.linear": "hydra_mlp.1.1.linear.weight",
            "embed": "input_embed_fn.weight",
            "heads.2.blocks.0.residual": "hydra_mlp.2.0.res_connection.weight",
        },
        [],
    ),
    "hydra, prefix": (HYDRA_PREFIXED, ["prefix_embeding_layer.layers.0"]),
    **{case: block() for case in MADE if "dflash" in case},
    **{
        case: (BLOCK | SELECTOR | CONVOLUTIONS, ["layers.0", "layers.1"])
        for case in ("dflash, 2", "speculators-dflash2")
    },
    "dflash, xpress": (BLOCK | refiner("xpress_head", XPRESS), ["layers.0", "layers.1"]),
    "speculators-xpress": (BLOCK | refiner("refiner_head", SPEC_XPRESS), ["layers.0", "layers.1"]),
    **{f"dflash, dspark {kind}": block(kind if kind in GATES else "") for kind in ("vanilla", *GATES)},
    **{f"speculators-dspark, {kind}": block(kind if kind in GATES else "") for kind in ("vanilla", *GATES)},
    **{name: mtp(name) for name in MTP},
    "deepseek, 2 modules": mtp("deepseek", 2),
    "mimo, 3 modules": mtp("mimo", 3),
    **{case: (ASSISTANT, [None, None]) for case in MADE if "assistant" in case},
    "speculators-mtp": (
        {
            "modules.0.join": "mtp_layers.0.input_proj.weight",
            "modules.0.embedding_norm": "mtp_layers.0.token_layernorm.weight",
            "modules.0.hidden_norm": "mtp_layers.0.hidden_layernorm.weight",
            "modules.0.norm": "mtp_layers.0.final_layernorm.weight",
        },
        ["mtp_layers.0"],
    ),
}
"""For each case our parameters with their tensors, and the beginnings of the names of the layers'
tensors."""


@pytest.mark.parametrize("case", PUBLISHED)
def test_a_published_layout_is_read_and_written(tmp_path, case):
    """Parameters are the tensors of the file.

    The same tensors are written again; the default layout holds them too.
    """
    (raw, tensors), (pairs, layers), name = MADE[case](), PAIRS[case], case.split(",")[0]
    head = load_drafter(write(tmp_path / "published", raw, tensors), DEEP)
    assert isinstance(head, Head) and head.layout == name
    found = parameters(head.module)
    for ours, theirs in pairs.items():
        if theirs in tensors:
            np.testing.assert_array_equal(found[ours], tensors[theirs], err_msg=ours)
        else:
            assert ours not in found
    assert {x.split(".")[0] for x in found} <= {x.split(".")[0] for x in pairs} | {"layers", "heads"}
    found_layers = [one for module in head.module.modules for one in getattr(module, "layers", [])]
    for one, prefix in zip(found_layers, layers, strict=True):
        if prefix is not None:  # the others are not Llama's
            same_layer(one, tensors, prefix)

    save_head(head, tmp_path / "saved")
    (file,) = (tmp_path / "saved").glob("*.safetensors")
    saved = load_file(file)
    assert saved.keys() == tensors.keys()
    assert all(saved[x].dtype == tensors[x].dtype and saved[x].tobytes() == tensors[x].tobytes() for x in tensors)
    again = load_drafter(tmp_path / "saved", DEEP)
    assert hash(again.config) == hash(head.config)
    assert same_heads(head, again) and again.layout == name
    if not case.startswith(
        ("speculators-dflash,", "speculators-dspark", "speculators-xpress")
    ):  # which dflash cannot hold
        save_head(head, tmp_path / "default", default_layout(head.config).name)
        assert same_heads(head, load_drafter(tmp_path / "default", DEEP))


def test_every_kind_has_one_default_layout():
    """Of a head's configuration one layout is the default; every layout serves a known kind."""
    assert {case.split(",")[0] for case in MADE} == LAYOUTS.keys()
    assert {layout.kind for layout in LAYOUTS.values()} == KINDS.keys()
    layers = DEEP.config.replace(num_layers=1)
    for config in (
        MtpConfig(layers, L),
        MtpConfig(layers, L, modules=2),
        EagleConfig(layers, L),
        MedusaConfig(E, L, V),
    ):
        assert [x for x in LAYOUTS.values() if x.kind == config.kind and x.is_default(config)] == [
            default_layout(config)
        ]


def test_layouts_write_only_what_they_have_names_for(tmp_path):
    """Several modules of one layer, or one of several; without a layout of its own a head gets one
    that fits."""
    config = MtpConfig(DEEP.config.replace(num_layers=1, windows=(None,)), L, modules=2)
    head = Head(MtpHead(config, jax.random.key(0)), config, "new")
    save_head(head, tmp_path / "a")
    again = load_drafter(tmp_path / "a", DEEP)
    assert again.layout == "deepseek" and same_heads(head, again)
    with pytest.raises(ConfigError, match="'mtp' holds one module"):
        save_head(head, tmp_path / "b", "mtp")
    config = MtpConfig(DEEP.config.replace(num_layers=2, windows=(None, None)), L)
    head = Head(MtpHead(config, jax.random.key(0)), config, "new")
    save_head(head, tmp_path / "c")
    assert same_heads(head, load_drafter(tmp_path / "c", DEEP))
    with pytest.raises(ConfigError, match="'mimo' holds modules of one decoder layer, not 2"):
        save_head(head, tmp_path / "d", "mimo")
