"""Published checkpoints load, and no option that transformers reads is overlooked.

``published_configs.json`` has the ``config.json`` of each checkpoint: its keys and values as published on the Hugging
Face hub. They were written down in 2026-11 from public copies of the files, and from memory where no copy was at hand.
Long lists in ``quantization_config`` are shortened, because ``from_hf`` ignores it.
"""

import ast
import inspect
import json
import re
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from specjax.checkpoints.config import from_hf, text_options
from specjax.checkpoints.families import FAMILIES, SAME_DECODER, WITH_TEXT
from specjax.checkpoints.schemas import HARMLESS
from specjax.checkpoints.unlisted_options import fields_in_transformers
from specjax.errors import ConfigError, SpecjaxWarning
from specjax.models.config import ModelConfig

PUBLISHED = json.loads(Path(__file__).with_name("published_configs.json").read_text())

REFUSED = {
    "google/gemma-4-26B-A4B": "moe_intermediate_size",
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": "mixture of experts",
}
"""The checkpoints that are not supported, and what the message names."""

OUTSIDE_THE_DECODER = re.compile(r"Vision|Audio|Multi[Mm]odal|Sequence|Token|QuestionAnswering|DoubleHeads")
"""The classes of transformers that have no part in a text decoder: other senses, and heads that classify."""

READ_ELSEWHERE = {
    "audio_config": "of sound",
    "audio_token_id": "of sound",
    "image_token_id": "of images",
    "num_channels": "of images",
    "patch_size": "of images",
    "video_token_id": "of images",
    "vision_config": "of images",
    "standardize": "of images",
    "text_config": "holds the text decoder's own options",
    "use_clipped_linears": "of sound and of images",
}
"""Options that a class around a text decoder reads, and why specjax need not."""


def class_of(family: str) -> type:
    """transformers' class. Its module is imported here, because each process collects the tests, and one runs them."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    return CONFIG_MAPPING[family]


def family_of(raw: dict) -> str:
    model_type = raw["model_type"]
    return WITH_TEXT.get(model_type) or SAME_DECODER.get(model_type, model_type)


BY_FAMILY = {family_of(raw): text_options(raw, "config.json") for raw in PUBLISHED.values()}


def load(raw: dict) -> tuple[ModelConfig, list[str]]:
    """The configuration, and the warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        config = from_hf(raw)
    return config, [str(one.message) for one in caught if one.category is SpecjaxWarning]


def sizes_in_transformers(raw: dict) -> tuple[int, ...]:
    """The layers, the width, the heads and the vocabulary of the decoder."""
    family = family_of(raw)
    model_type = family if raw["model_type"] in SAME_DECODER else raw["model_type"]
    theirs = class_of(model_type).from_dict(raw | {"model_type": model_type}).get_text_config()
    names = ["num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size"]
    names = [FAMILIES[family].renamed.get(name, name) for name in names]
    if family == "t5":
        names[0] = "num_decoder_layers"
    return tuple(getattr(theirs, name) for name in names)


def defines(configuration: type, name: str) -> bool:
    """Whether transformers' class has an option, an attribute or a method of this name."""
    fields = {field for kind in configuration.__mro__ for field in getattr(kind, "__annotations__", {})}
    return name in fields or name in configuration.attribute_map or hasattr(configuration, name)


def reads(tree: ast.AST) -> Iterator[str]:
    """The options that a class reads: ``config.NAME``, ``self.config.NAME`` and ``getattr(config, "NAME")``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_config(node.value):
            yield node.attr
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr":
            config, name, *_ = node.args
            if is_config(config) and isinstance(name, ast.Constant):
                yield str(name.value)


def is_config(node: ast.AST) -> bool:
    name = getattr(node, "id", "") or getattr(node, "attr", "")
    return name in ("config", "text_config", "decoder_config")


def test_the_file_has_checkpoints_of_every_family():
    assert len(PUBLISHED.keys() - REFUSED) >= 60 and REFUSED.keys() <= PUBLISHED.keys()
    assert BY_FAMILY.keys() == FAMILIES.keys()


@pytest.mark.parametrize("name", [name for name in PUBLISHED if name not in REFUSED])
def test_a_checkpoint_loads_with_the_sizes_that_transformers_reads(name: str):
    config, told = load(PUBLISHED[name])
    ours = config.num_layers, config.hidden_size, config.num_heads, config.vocab_size
    assert ours == sizes_in_transformers(PUBLISHED[name])
    assert len(told) <= 1


@pytest.mark.parametrize("name", REFUSED)
def test_a_checkpoint_that_is_not_supported_is_refused_by_the_name_of_the_option(name: str):
    with pytest.raises(ConfigError, match=REFUSED[name]):
        load(PUBLISHED[name])


@pytest.mark.parametrize("family", FAMILIES)
def test_an_option_of_transformers_is_listed_or_refused(family: str):
    kind = FAMILIES[family]
    names = {*inspect.signature(class_of(family)).parameters, *class_of(family).attribute_map}
    assert names == fields_in_transformers(family)
    for name in names - kind.options.keys() - kind.former.keys() - HARMLESS - kind.harmless - {"quantization_config"}:
        with pytest.raises(ConfigError, match=f"'{name}' = 'on' is not supported"):
            load(BY_FAMILY[family] | {name: "on"})


@pytest.mark.parametrize("family", FAMILIES)
def test_an_option_without_a_field_in_transformers_is_listed_where_its_code_reads_it(family: str):
    """Most such options are in old files, and transformers reads them with ``getattr``."""
    kind = FAMILIES[family]
    folder = Path(inspect.getfile(class_of(family))).parent
    classes = [
        node
        for path in folder.glob("modeling_*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef) and not OUTSIDE_THE_DECODER.search(node.name)
    ]
    read = {name for node in classes for name in reads(node)}
    known = kind.options.keys() | kind.former.keys() | kind.harmless | HARMLESS | READ_ELSEWHERE.keys()
    assert "vocab_size" in read
    assert {name for name in read - known if not defines(class_of(family), name)} == set()


def test_the_scan_sees_all_ways_to_read_an_option():
    source = 'config.a, self.config.b, getattr(config, "c", None), getattr(self.config, "d"), other.e'
    assert {*reads(ast.parse(source))} == {*"abcd"}


def test_ignored_options_are_told_in_one_warning():
    odd = PUBLISHED["HuggingFaceTB/SmolLM2-135M-Instruct"] | {"is_llama_config": True, "rope_interleaved": True}
    _, (told,) = load(odd)
    assert "'is_llama_config'" in told and "'rope_interleaved'" in told
    assert load(PUBLISHED["meta-llama/Llama-2-7b-hf"])[1] == []
