"""All published forms of heads by name, and comparisons of heads that were read."""

import json
import operator
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
from flax import nnx
from safetensors.numpy import load_file

from specjax import load_drafter, save_head
from specjax.checkpoints.layouts import LAYOUTS, default_layout
from specjax.heads import KINDS, Head, HeadConfig
from support.models import random_head
from support.numpy_layer import gate_and_up
from support.published_heads import (
    DEEP,
    KNOWN,
    MTP,
    D,
    E,
    H,
    K,
    V,
    assistant,
    dflash,
    dflash2,
    dspark,
    eagle,
    eagle3,
    hydra,
    hydra_prefixed,
    medusa,
    mtp,
    normal,
    parallel,
    write,
    xpress,
)
from support.published_speculators import (
    spec_dflash,
    spec_dflash2,
    spec_dspark,
    spec_mtp,
    spec_peagle,
    spec_xpress,
    speculators,
)

MADE = {
    "eagle": eagle,
    "eagle3": eagle3,
    "eagle3, parallel": parallel,
    "speculators": lambda **raw: speculators(fc_norm=True, **raw),
    "speculators, norm": lambda **raw: speculators(norm_before_fc=True, **raw),
    "speculators, parallel": lambda **raw: (
        speculators(parallel_drafting=True, mask_token_id=60, **raw)[0],
        speculators()[1] | {"mask_hidden": normal(1, 1, 3 * E)},
    ),
    "speculators-peagle": spec_peagle,
    "speculators-mtp": spec_mtp,
    "speculators-dflash": spec_dflash,
    "speculators-dflash, windows": lambda **raw: spec_dflash(KNOWN, (True, True), **raw),
    "speculators-dflash, one window": lambda **raw: spec_dflash(V, (True, False), **raw),
    **{
        f"speculators-dspark, {kind}": lambda kind=kind, **raw: spec_dspark(kind, **raw)
        for kind in ("vanilla", "gated", "rnn")
    },
    "speculators-dflash2": spec_dflash2,
    "speculators-xpress": lambda **raw: spec_xpress(KNOWN, **raw),
    "medusa": medusa,
    "medusa, 2 blocks": lambda **raw: medusa(2, **raw),
    "hydra": hydra,
    "hydra, 2 blocks": lambda **raw: hydra(2, **raw),
    "hydra, prefix": hydra_prefixed,
    "gemma4-assistant": assistant,
    "gemma4-assistant, clusters": lambda **raw: assistant(V, **raw),
    "dflash": dflash,
    "dflash, 2": dflash2,
    "dflash, xpress": xpress,
    **{f"dflash, dspark {kind}": lambda kind=kind, **raw: dspark(kind, **raw) for kind in ("vanilla", "gated", "rnn")},
    **{name: lambda name=name, **raw: mtp(name, **raw) for name in MTP},
    "deepseek, 2 modules": lambda **raw: mtp("deepseek", 2, **raw),
    "mimo, 3 modules": lambda **raw: mtp("mimo", 3, **raw),
}
"""Cases: the name begins with that of the layout; the function makes config.json and the
tensors."""


def saved(config: HeadConfig, **raw) -> tuple[dict, dict]:
    """A random head, as ``save_head`` writes it. It stands for the published form of a kind that has none above."""
    with tempfile.TemporaryDirectory() as directory:
        save_head(Head(random_head(KINDS[config.kind].module, config), config, config.kind), directory)
        (file,) = Path(directory).glob("*.safetensors")
        return json.loads((Path(directory) / "config.json").read_text()) | raw, load_file(file)


PUBLISHED = tuple(MADE)
"""The cases in the forms that their authors publish."""

for _name in KINDS.keys() - {LAYOUTS[case.split(",")[0]].kind for case in MADE}:
    _config = KINDS[_name].usual(DEEP.config, DEEP.config.with_layers([0]).like_llama())
    MADE[default_layout(_config).name] = partial(saved, _config)


def parameters(module) -> dict:
    return {".".join(map(str, path)): np.asarray(value[...]) for path, value in nnx.to_flat_state(nnx.state(module))}


def same_heads(a: Head, b: Head) -> bool:
    one, two = parameters(a.module), parameters(b.module)
    return a.config == b.config and one.keys() == two.keys() and all(one[x].tobytes() == two[x].tobytes() for x in one)


def same_layer(module, tensors: dict, prefix: str) -> None:
    """Our stacked parameters against the rows of the file: for each key head its queries, its key,
    its value."""
    q, k, v = (tensors[f"{prefix}.self_attn.{x}_proj.weight"] for x in "qkv")
    G = H // K
    stacked = [
        np.concatenate([q[i * G * D : (i + 1) * G * D], k[i * D : (i + 1) * D], v[i * D : (i + 1) * D]])
        for i in range(K)
    ]
    same(module.mixer.qkv, np.concatenate(stacked))
    if f"{prefix}.self_attn.q_proj.bias" in tensors:
        q, k, v = (tensors[f"{prefix}.self_attn.{x}_proj.bias"] for x in "qkv")
        same(
            module.mixer.qkv_bias,
            np.concatenate(
                [
                    np.r_[q[i * G * D : (i + 1) * G * D], k[i * D : (i + 1) * D], v[i * D : (i + 1) * D]]
                    for i in range(K)
                ]
            ),
        )
    for rows, name in zip(gate_and_up(module.mlp.gate_up[...], 0), ("gate", "up")):
        np.testing.assert_array_equal(rows, tensors[f"{prefix}.mlp.{name}_proj.weight"])
    names = {
        "mixer.out": "self_attn.o_proj",
        "mlp.down": "mlp.down_proj",
        "mlp_norm": "post_attention_layernorm",
        "mixer_norm": "input_layernorm",
    }
    names |= {"mixer.q_norm": "self_attn.q_norm", "mixer.k_norm": "self_attn.k_norm", "hidden_norm": "hidden_norm"}
    for ours, theirs in names.items():
        if f"{prefix}.{theirs}.weight" in tensors:
            same(operator.attrgetter(ours)(module), tensors[f"{prefix}.{theirs}.weight"])
        else:
            assert ours == "hidden_norm" and not hasattr(module, ours) or operator.attrgetter(ours)(module) is None


def same(parameter, tensor) -> None:
    np.testing.assert_array_equal(np.asarray(parameter[...]), tensor)


def config_of(tmp_path, made, **changes):
    """The configuration that is read from the checkpoint that ``made`` makes."""
    raw, tensors = made(**changes)
    return load_drafter(write(tmp_path / str(len(list(tmp_path.iterdir()))), raw, tensors), DEEP).config
