"""The forms of tensors in GGUF files, as llama.cpp's conversion changes them."""

import re
from collections.abc import Mapping

import numpy as np


def key_heads(raw: Mapping) -> int | None:
    """The number of key heads. Falcon 7B has one and does not say so."""
    return raw.get("num_key_value_heads") or raw.get("num_kv_heads") or (1 if raw["model_type"] == "falcon" else None)


def change(name: str, values: np.ndarray, raw: Mapping) -> np.ndarray:
    """The tensor in the form of a GGUF file."""
    kind, heads = raw["model_type"], raw.get("num_attention_heads") or raw.get("n_head") or raw["num_heads"]
    if kind in ("llama", "mixtral", "smollm3", "granite", "arcee") and re.search(r"\.[qk]_proj\.", name):
        heads = heads if ".q_proj" in name else raw.get("num_key_value_heads") or heads
        shape = values.shape
        return values.reshape(heads, 2, shape[0] // heads // 2, *shape[1:]).swapaxes(1, 2).reshape(shape)
    if (
        kind.startswith(("gemma2", "gemma3", "qwen3_5", "qwen3_next"))
        and name.endswith("norm.weight")
        and "linear_attn" not in name
    ):
        return values + np.float32(1)
    if "linear_attn" in name and not name.endswith("norm.weight"):
        return of_delta_rule(name, values, raw)
    if kind == "gpt2" and re.search(r"(c_attn|c_proj|c_fc)\.weight", name):
        return values.T
    if "query_key_value" in name:
        keys = key_heads(raw) or heads
        parts = values.reshape(keys, heads // keys + 2, -1, *values.shape[1:])
        return np.concatenate([x.reshape(-1, *values.shape[1:]) for x in (parts[:, :-2], parts[:, -2], parts[:, -1])])
    if kind in ("mamba2", "nemotron_h") and name.endswith(("A_log", ".D")):
        return (-np.exp(values) if name.endswith("A_log") else values)[:, None]
    if kind in ("mamba2", "nemotron_h") and name.endswith("mixer.norm.weight"):
        return values.reshape(raw["n_groups"], -1)
    if name.endswith(("conv1d.weight", "conv.conv.weight", "moe_statics.e_score_correction.bias")):
        return values.squeeze()
    return values.squeeze() if "shared_expert_gate" in name else values


def of_delta_rule(name: str, values: np.ndarray, raw: Mapping) -> np.ndarray:
    """The tensor with the heads of values tiled: the first of each head of keys, then the second of each.

    Qwen3-Next has them as its checkpoint.
    """
    keys, heads, size = (raw[f"linear_{part}"] for part in ("num_key_heads", "num_value_heads", "value_head_dim"))

    def tile(rows: np.ndarray) -> np.ndarray:
        if raw["model_type"] == "qwen3_next":
            return rows
        apart = rows.reshape(keys, heads // keys, -1, *rows.shape[1:])
        return np.concatenate([apart[:, i].reshape(-1, *rows.shape[1:]) for i in range(heads // keys)])

    if "in_proj_qkv" in name or "conv1d" in name:
        first = values.shape[0] - heads * size
        return np.concatenate([values[:first], tile(values[first:])]).squeeze()
    if "out_proj" in name:
        return tile(values.T).T
    return tile(-np.exp(values) if name.endswith("A_log") else values)


def split_projections(tensors: Mapping[str, np.ndarray], raw: Mapping) -> dict[str, np.ndarray]:
    """The tensors with Qwen3-Next's queries, keys and values of all heads, and its gates, in two matrices."""
    split = {}
    for name, values in tensors.items():
        if "in_proj_qkvz" not in name:
            split[name] = values
            continue
        keys, heads = raw["linear_num_key_heads"], raw["linear_num_value_heads"]
        size, width = raw["linear_key_head_dim"], raw["linear_value_head_dim"] * heads // keys
        parts = np.split(values.reshape(keys, -1, values.shape[1]), (size, 2 * size, 2 * size + width), 1)
        *qkv, gate = [part.reshape(-1, values.shape[1]) for part in parts]
        split |= {name.replace("qkvz", "qkv"): np.concatenate(qkv), name.replace("qkvz", "z"): gate}
    return split


def stack_experts(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The tensors with one stack for the matrices of all experts."""
    stacks, others = {}, {}
    for name, values in tensors.items():
        if match := re.fullmatch(r"(.*\.experts)\.(\d+)\.(.*)", name):
            stacks.setdefault(f"{match[1]}.{match[3]}", {})[int(match[2])] = values
        else:
            others[name] = values
    return others | {name: np.stack([of[i] for i in range(len(of))]) for name, of in stacks.items()}


def split_experts(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The tensors of gpt-oss and Llama 4 with separate gates, as [X, out, in]; those of others as they are."""
    split = {}
    for name, values in tensors.items():
        prefix, found, last = name.partition(".experts.")
        if not found or not last.startswith(("gate_up_proj", "down_proj")) or last.endswith(".weight"):
            split[name] = values
            continue
        values = values if last.endswith("_bias") else values.swapaxes(1, 2)
        end = "bias" if last.endswith("_bias") else "weight"
        half = values.shape[1] // 2
        gate, up = (
            (values[:, :half], values[:, half:]) if "feed_forward" in prefix else (values[:, ::2], values[:, 1::2])
        )
        parts = {"gate": gate, "up": up} if last.startswith("gate_up") else {"down": values}
        split |= {f"{prefix}.experts.{part}_proj.{end}": x for part, x in parts.items()}
    return split
