"""Checkpoints of heads with random tensors, in the forms that speculators 0.9 writes."""

from support.published_heads import (
    DFLASH2,
    KNOWN,
    LLAMA,
    E,
    L,
    V,
    convolutions,
    dflash,
    dspark,
    eagle3,
    layer,
    mapping,
    normal,
    refiner,
    selector,
)


def speculators(fc_norm=False, norm_before_fc=False, **raw):
    _, tensors = eagle3("layers.0")
    tensors |= {"embed_tokens.weight": normal(V, E)}
    tensors |= {f"fc_norm.{i}.weight": normal(E) for i in range(3) if fc_norm}
    tensors |= {"input_norm.weight": normal(3 * E)} if norm_before_fc else {}
    nested = {k: v for k, v in LLAMA.items() if k not in ("rope_theta", "torch_dtype")} | dict(
        rope_parameters=dict(rope_theta=7e5, rope_type="default")
    )
    return dict(
        architectures=["Eagle3Speculator"],
        speculators_model_type="eagle3",
        speculators_version="0.3.0",
        transformer_layer_config=nested,
        speculators_config=dict(algorithm="eagle3", verifier=dict(name_or_path="x")),
        draft_vocab_size=KNOWN,
        norm_before_residual=True,
        fc_norm=fc_norm,
        norm_before_fc=norm_before_fc,
        torch_dtype="float32",
        eagle_aux_hidden_state_layer_ids=[1, 2, 4],
    ) | raw, tensors


QWEN3 = {k: v for k, v in LLAMA.items() if k not in ("rope_theta", "torch_dtype", "num_hidden_layers")} | dict(
    model_type="qwen3",
    rope_parameters=dict(rope_theta=5e5, rope_type="default"),
    attention_bias=False,
    attention_dropout=0.0,
    hidden_act="silu",
    use_cache=True,
    use_sliding_window=False,
    sliding_window=None,
    max_window_layers=28,
)


def envelope(kind: str, layers: int, shape: dict | None = None) -> dict:
    """What speculators 0.9 writes for all types; scripts/golden/check_speculators.py compares this with
    the package."""
    types = dict(num_hidden_layers=layers, layer_types=["full_attention"] * layers)
    return dict(
        architectures=["SomeDraftModel"],
        auto_map={"": "config.SomeConfig"},
        dtype="float32",
        speculators_model_type=kind,
        speculators_version="0.9.0",
        speculators_config=dict(algorithm=kind, verifier=dict(name_or_path=None, architectures=[])),
        tie_word_embeddings=False,
        transformers_version="5.19.0",
        transformer_layer_config=QWEN3 | types | (shape or {}),
    )


def spec_peagle(**raw):
    _, tensors = speculators()
    base = speculators(
        speculators_model_type="peagle", mask_token_id=60, embed_requires_grad=True, target_hidden_size=None
    )[0]
    return base | raw, tensors | {"mask_hidden": normal(1, 1, 3 * E)}


def spec_mtp(**raw):
    prefix = "mtp_layers.0"
    norms = ("token_layernorm", "hidden_layernorm", "final_layernorm")
    tensors = {f"{prefix}.input_proj.weight": normal(E, 2 * E)} | {
        f"{prefix}.{norm}.weight": normal(E) for norm in norms
    }
    return envelope("mtp", L) | dict(num_nextn_predict_layers=1) | raw, tensors | layer(prefix, qk_norm=True)


def spec_dflash(known=V, windows=(False, False), kind="dflash", **raw):
    """``windows``: which layers have an attention window.

    ``known``: tokens of the draft vocabulary.
    """
    tensors = dflash()[1]
    tensors |= {"lm_head.weight": normal(known, E)} | mapping() if known < V else {}
    types = ["sliding_attention" if window else "full_attention" for window in windows]
    shape = dict(layer_types=types) | (dict(sliding_window=16, use_sliding_window=True) if any(windows) else {})
    return envelope(kind, 2, shape) | dict(
        aux_hidden_state_layer_ids=[2, 4],
        block_size=8,
        draft_vocab_size=known,
        mask_token_id=60,
        sample_from_anchor=False,
        sliding_window_non_causal=False,
        target_hidden_size=None,
    ) | raw, tensors


def spec_dspark(kind="vanilla", known=KNOWN, **raw):
    base, tensors = spec_dflash(known, kind="dspark", block_size=7, sample_from_anchor=True)
    tensors |= {name: x for name, x in dspark(kind)[1].items() if name.startswith(("markov_head.", "confidence_head."))}
    tensors |= {"markov_head.markov_w2.weight": normal(known, 4)}
    return base | dict(
        markov_rank=4,
        markov_head_type=kind,
        enable_confidence_head=True,
        confidence_head_with_markov=True,
    ) | raw, tensors


def spec_dflash2(**raw):
    base, tensors = spec_dflash(kind="dflash2", sliding_window_non_causal=True)
    return base | DFLASH2 | raw, tensors | convolutions(2) | selector()


XPRESS = ("token_embed.weight", "down_h.weight", "down_g.weight", "in_proj.weight", "mix_l", "mlp_gate.weight",
          "mlp_up.weight", "mlp_down.weight", "readout.weight")  # fmt: skip


def spec_xpress(known=V, **raw):
    base, tensors = spec_dflash(known, kind="xpress")
    own = dict(xpress_rank=4, xpress_mlp_ratio=2, num_jacobi_passes=6)
    return base | own | raw, tensors | refiner(*(f"refiner_head.{name}" for name in XPRESS), known=known)
