"""Llama 4, text: chunks of attention, layers without positions, experts with scaled inputs.

Meta published the models without a paper.
"""

from ...errors import ConfigError
from ...kernels.gpu.attention import Scores
from ...models.config import ModelConfig
from ...models.feed_forwards import ExpertsConfig, GatedMlpConfig
from ...models.mixers import AttentionConfig
from ...models.rope import Rope
from ..blocks import Tensor, interleave
from ..json_fields import choice, flag, integer, list_of, number
from ..rope_options import read_rope
from ..schemas import LONGEST, POSITIONS, SIZE, SIZES
from .base import LLAMA_LAYER, Family, model_names
from .mixtures import STACKS, TRAINING, local_experts

_LAYER = (
    LLAMA_LAYER
    | STACKS
    | {
        "mixer.qkv": [Tensor(f"self_attn.{x}_proj.weight", interleave) for x in "qkv"],
        "mixer.qkv_bias": [Tensor(f"self_attn.{x}_proj.bias", interleave) for x in "qkv"],
        "mlp.gate_up": ["feed_forward.gate_proj.weight", "feed_forward.up_proj.weight"],
        "mlp.down": ["feed_forward.down_proj.weight"],
        "mlp.shared.gate_up": [f"feed_forward.shared_expert.{x}_proj.weight" for x in ("gate", "up")],
        "mlp.shared.down": ["feed_forward.shared_expert.down_proj.weight"],
        "mlp.router": ["feed_forward.router.weight"],
    }
)


def _read(options: dict, where: str) -> dict:
    layers, heads, chunk = (options[x] for x in ("num_hidden_layers", "num_attention_heads", "attention_chunk_size"))
    every, step = options["no_rope_layer_interval"], options["interleave_moe_layer_step"]
    rotated = options["no_rope_layers"] or [int((i + 1) % every > 0) for i in range(layers)]
    kinds = options["layer_types"] or ["chunked_attention" if each else "full_attention" for each in rotated]
    for name, listed in {"no_rope_layers": rotated, "layer_types": kinds}.items():
        if len(listed) < layers:
            raise ConfigError(f"{where}: {name} has {len(listed)} entries; give one for each of the {layers} layers")
    if "chunked_attention" in kinds[:layers] and chunk is None:
        raise ConfigError(f"{where}: attention_chunk_size is null; layers with chunked_attention need it")
    if options["num_experts_per_tok"] > options["num_local_experts"]:
        raise ConfigError(
            f"{where}: num_experts_per_tok is {options['num_experts_per_tok']}; the model has "
            f"{options['num_local_experts']} experts"
        )
    chunks = tuple(chunk if kinds[i] == "chunked_attention" else None for i in range(layers))
    rope = read_rope(options, options["head_dim"], where, 500000.0, None)
    tuned = (options["floor_scale"], options["attn_scale"]) if options["attn_temperature_tuning"] else None
    bias, norms = options["attention_bias"], options["use_qk_norm"]
    mixers = tuple(
        AttentionConfig(
            heads, options["num_key_value_heads"], options["head_dim"], rope if turns else Rope(rotated=0.0),
            Scores(chunk=size), bias, bias, norm_after=turns and norms, plain_qk_norm=turns and norms,
            temperature=None if turns else tuned,
        )
        for size, turns in zip(chunks, map(bool, rotated))
    )  # fmt: skip
    width = options["intermediate_size"]
    experts = ExpertsConfig(
        options["num_local_experts"], options["num_experts_per_tok"], width,
        shared=GatedMlpConfig(width), shared_gate=False, scales_inputs=True,
    )  # fmt: skip
    routed = options["moe_layers"]
    routed = range(step - 1, layers, step) if routed is None else routed
    mlps = tuple(experts if i in routed else None for i in range(layers))
    return dict(
        intermediate_size=options["intermediate_size_mlp"],
        rope=rope,
        qkv_bias=bias,
        out_bias=bias,
        windows=chunks if any(chunks) else (),
        mixers=mixers,
        mlps=mlps if any(mlps) else (),
    )


def _write(config: ModelConfig) -> dict:
    mixers = [layer.mixer for layer in config.layers if isinstance(layer.mixer, AttentionConfig)]
    experts = next((mlp for mlp in config.mlps if isinstance(mlp, ExpertsConfig)), None)
    tuned = next((mixer.temperature for mixer in mixers if mixer.temperature), None)
    written = {
        "intermediate_size": config.intermediate_size if experts is None else experts.width,
        "intermediate_size_mlp": config.intermediate_size,
        "attention_bias": config.qkv_bias,
        "no_rope_layers": [int(mixer.rope.rotated > 0) for mixer in mixers],
        "layer_types": ["chunked_attention" if mixer.scores.chunk else "full_attention" for mixer in mixers],
        "attention_chunk_size": next((mixer.scores.chunk for mixer in mixers if mixer.scores.chunk), None),
        "use_qk_norm": any(mixer.plain_qk_norm for mixer in mixers),
        "attn_temperature_tuning": tuned is not None,
        "moe_layers": [i for i, mlp in enumerate(config.mlps) if mlp],
    }
    if tuned is not None:
        written |= {"floor_scale": tuned[0], "attn_scale": tuned[1]}
    if experts is not None:
        written |= {"num_local_experts": experts.count, "num_experts_per_tok": experts.chosen}
    return written


LLAMA4 = Family(
    "llama4_text",
    "Llama4ForCausalLM",
    "Llama 4 Scout and Maverick (text)",
    local_experts(131072, 16, 1)
    | {
        "rms_norm_eps": SIZES["rms_norm_eps"].otherwise(1e-5),
        "intermediate_size": SIZE.otherwise(8192),
        "intermediate_size_mlp": SIZE.otherwise(16384),
        "attention_bias": flag(),
        "attention_chunk_size": POSITIONS.optional(8192),
        "layer_types": list_of(choice("chunked_attention", "full_attention")).optional(),
        "no_rope_layers": list_of(choice(0, 1)).optional(),
        "no_rope_layer_interval": integer(1, 1024).otherwise(4),
        "use_qk_norm": flag(True),
        "attn_temperature_tuning": (flag(True) | integer(0, LONGEST)).otherwise(True),  # old files have 4
        "floor_scale": POSITIONS.otherwise(8192),
        "attn_scale": number(-1e3, 1e3).otherwise(0.1),
        "moe_layers": list_of(integer(0, 1023)).optional(),
        "interleave_moe_layer_step": integer(1, 1024).otherwise(1),
    },
    model_names(_LAYER),
    refused="images",
    read=_read,
    write=_write,
    theta=None,
    harmless=TRAINING | {"cache_implementation", "for_llm_compressor"},
    drafters="EAGLE-3",
    experts=("feed_forward", {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}),
)
