"""Fields of config.json with a wrong type or out of range: one line that names the field, never a
traceback."""

import copy
from functools import cache
from types import SimpleNamespace

import pytest
from support.head_cases import MADE
from support.published_heads import DEEP

from specjax.checkpoints.heads import read_head_config
from specjax.checkpoints.layouts import LAYOUTS, RawCheckpoint, find_layout
from specjax.errors import ConfigError, SpecjaxError

WRONG = [
    "7",
    "",
    1.5,
    True,
    False,
    -1,
    -(10**9),
    2**40,
    10**400,
    float("nan"),
    float("inf"),
    [],
    {},
    [[1]],
    [None],
    {"a": 1},
]
"""Values that no whole number may have in these files."""

WHOLE, FLAG, LAYERS, TABLE = "whole", "flag", "layers", "table"
NOT = {
    WHOLE: WRONG,
    FLAG: ["false", "true", 0, 1, 1.5, [], {}, [True]],
    LAYERS: ["1", 3, 1.5, True, [], {}, [1.5], ["1"], [True], [None], [-2], [10**9], [[1]], "123"],
    TABLE: ["a", 3, 1.5, True, [], [{}]],
}
EAGLE3 = {
    "draft_vocab_size": WHOLE,
    "target_hidden_size": WHOLE,
    "num_target_layers": WHOLE,
    "norm_before_residual": FLAG,
    "fc_norm": FLAG,
    "norm_before_fc": FLAG,
    "norm_output": FLAG,
    "parallel_drafting": FLAG,
    "eagle_aux_hidden_state_layer_ids": LAYERS,
}
MARKOV = {"markov_rank": WHOLE, "enable_confidence_head": FLAG, "confidence_head_with_markov": FLAG}
PLACES = {"mask_token_id": WHOLE, "block_size": WHOLE}
BLOCK = {"target_hidden_size": WHOLE, "num_target_layers": WHOLE, "sample_from_anchor": FLAG}
MTP = {
    "num_nextn_predict_layers": WHOLE,
    "mtp_normed_features": FLAG,
    "mtp_norm_output": FLAG,
    "mtp_hidden_first": FLAG,
}
OUTER = {"transformer_layer_config": TABLE}
SPECULATORS_BLOCK = (
    OUTER
    | BLOCK
    | PLACES
    | {
        "aux_hidden_state_layer_ids": LAYERS,
        "draft_vocab_size": WHOLE,
        "sliding_window_non_causal": FLAG,
    }
)
PARTS = {name: WHOLE for name in ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")}
FIELDS = {
    "eagle": {"bias": FLAG, "num_target_layers": WHOLE},
    "eagle3": EAGLE3
    | {
        "eagle_config": TABLE,
        "eagle_config.eagle_aux_hidden_state_layer_ids": LAYERS,
        "eagle_config.use_aux_hidden_state": FLAG,
    },
    "eagle3, parallel": {"mask_token_id": WHOLE},
    "speculators": OUTER | EAGLE3,
    "speculators-peagle": OUTER | EAGLE3 | {"mask_token_id": WHOLE},
    "speculators-mtp": OUTER | MTP,
    "speculators-dflash": SPECULATORS_BLOCK,
    "speculators-dspark, gated": SPECULATORS_BLOCK | MARKOV,
    "speculators-dflash2": SPECULATORS_BLOCK | PARTS,
    "speculators-xpress": SPECULATORS_BLOCK
    | {"xpress_rank": WHOLE, "xpress_mlp_ratio": WHOLE, "num_jacobi_passes": WHOLE},
    "medusa": {"num_target_layers": WHOLE},
    "hydra": {"num_target_layers": WHOLE, "hidden_state_offset": WHOLE, "grounded_heads": FLAG},
    "dflash": BLOCK
    | {"dflash_config": TABLE}
    | {
        f"dflash_config.{name}": kind
        for name, kind in (
            MARKOV
            | {
                "mask_token_id": WHOLE,
                "target_layer_ids": LAYERS,
                "causal_head": FLAG,
                "causal": FLAG,
                "draft_shift": FLAG,
            }
        ).items()
    }
    | {"block_size": WHOLE},
    "gemma4-assistant": {"text_config": TABLE, "backbone_hidden_size": WHOLE},
    "gemma4-assistant, clusters": {
        "use_ordered_embeddings": FLAG,
        "num_centroids": WHOLE,
        "centroid_intermediate_top_k": WHOLE,
    },
    "dflash, 2": {f"dflash_config.{name}": kind for name, kind in PARTS.items()} | {"is_causal": FLAG},
    "dflash, xpress": {"xpress_rank": WHOLE, "xpress_mlp_hidden": WHOLE, "xpress_num_passes": WHOLE},
    "dflash, dspark gated": BLOCK | PLACES | MARKOV | {"target_layer_ids": LAYERS},
    "mtp": MTP | {"mtp_num_hidden_layers": WHOLE, "num_hidden_layers": WHOLE},
    "deepseek": MTP | {"mtp_num_hidden_layers": WHOLE, "num_hidden_layers": WHOLE},
    "mimo": MTP | {"mtp_num_hidden_layers": WHOLE, "num_hidden_layers": WHOLE},
}
"""For each layout the fields that its head reads itself; a dot leads into an object."""

REQUIRED = {
    "speculators-peagle": ["mask_token_id", "transformer_layer_config"],
    "speculators-dflash": ["mask_token_id", "aux_hidden_state_layer_ids", "transformer_layer_config"],
    "speculators-mtp": ["transformer_layer_config"],
    "dflash": ["dflash_config.mask_token_id", "dflash_config.target_layer_ids", "block_size"],
    "dflash, 2": [f"dflash_config.{name}" for name in PARTS],
    "dflash, xpress": ["xpress_rank", "xpress_mlp_hidden", "xpress_num_passes"],
    "dflash, dspark gated": ["mask_token_id", "target_layer_ids", "block_size"],
    "mtp": ["num_hidden_layers"],
}


@cache
def checkpoint(case: str) -> tuple[dict, dict]:
    """config.json, and tensors of which only the shapes are known."""
    raw, tensors = MADE[case]()
    return raw, {name: SimpleNamespace(get_shape=lambda x=x: x.shape) for name, x in tensors.items()}


def read(case: str, raw: dict):
    """The configuration of a head with another config.json."""
    found = RawCheckpoint(raw, checkpoint(case)[1], "here")
    return read_head_config(find_layout(found), found, DEEP)


def changed(case: str, field: str, *value) -> dict:
    """config.json with a field of another value, or without it."""
    raw = copy.deepcopy(checkpoint(case)[0])
    *outer, name = field.split(".")
    inside = raw
    for key in outer:
        inside = inside.setdefault(key, {})
    inside.pop(name, None)
    inside.update({name: value[0]} if value else {})
    return raw


@pytest.mark.parametrize("case", FIELDS)
def test_wrong_values_are_refused_by_the_name_of_the_field(case):
    for field, kind in FIELDS[case].items():
        for value in NOT[kind]:
            with pytest.raises(ConfigError) as error:
                read(case, changed(case, field, value))
            message = str(error.value)
            assert field.split(".")[-1] in message and message.startswith("here"), (field, value, message)
            assert "\n" not in message and len(message) < 300, message


@pytest.mark.parametrize("case", REQUIRED)
def test_missing_fields_are_named(case):
    for field in REQUIRED[case]:
        for raw in (changed(case, field), changed(case, field, None)):
            with pytest.raises(ConfigError, match=field.split(".")[-1]):
                read(case, raw)


@pytest.mark.parametrize("case", FIELDS)
def test_fields_of_every_type_never_end_in_a_traceback(case):
    """Every field of the file at every level, fields of the decoder layers included."""
    raw = checkpoint(case)[0]
    paths = list(raw) + [
        f"{outer}.{inner}" for outer, inside in raw.items() if isinstance(inside, dict) for inner in inside
    ]
    paths += ["speculators_model_type", "architectures", "model_type", "dtype", "markov_head_type", "attention_mode"]
    for path in paths:
        for value in [*WRONG, None, "\n", "x" * 10_000, 10**9, ["x"] * 3]:
            try:
                read(case, changed(case, path, value))
            except SpecjaxError as error:
                assert "\n" not in str(error) and len(str(error)) < 500, (path, value, str(error))  # noqa: PT017


def test_limits_are_named():
    for case, field, value, limit in (
        ("dflash, dspark gated", "block_size", 10**6, "4096"),
        ("speculators-dflash", "block_size", 4097, "4096"),
        ("mtp", "mtp_num_hidden_layers", 129, "128"),
        ("speculators", "draft_vocab_size", 62, "61"),
        ("speculators-dspark, gated", "draft_vocab_size", 62, "61"),
    ):
        with pytest.raises(ConfigError, match=rf"{field}.*{limit}"):
            read(case, changed(case, field, value))
    with pytest.raises(ConfigError, match="no place to draft at"):
        read("speculators-dflash", changed("speculators-dflash", "block_size", 1))


def test_every_layout_is_covered():
    assert {case.split(",")[0] for case in FIELDS} == LAYOUTS.keys()
