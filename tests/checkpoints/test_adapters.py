"""LoRA adapters: merged weights against PEFT's logits, recorded by scripts/golden/make_golden_adapters.py, and refusals."""

import json
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from support.models import byte_tokenizer

import specjax
from specjax.checkpoints.placement import Placement
from specjax.checkpoints.tensors import load_model
from specjax.errors import CheckpointError, ConfigError, RequestError, SpecjaxError, SpecjaxWarning
from specjax.training.losses import scores

GOLDEN = sorted((Path(__file__).parent / "golden").glob("*.safetensors"))
BASE = Path(__file__).parents[1] / "models" / "golden" / "llama_gqa.safetensors"
CONFIG = {"peft_type": "LORA", "r": 2, "lora_alpha": 3, "target_modules": ["q_proj"]}
NEW = "base_model.model.model.embed_tokens.token_adapter.trainable_tokens_delta"
Q = "base_model.model.model.layers.0.self_attn.q_proj.lora_"

pytestmark = pytest.mark.usefixtures("small_programs")


def read(path: Path) -> tuple[dict, dict]:
    with safe_open(path, framework="numpy") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, json.loads(file.metadata()["config"])


def write(directory: Path, tensors: dict, config: dict, weights: str = "adapter_model.safetensors") -> Path:
    directory.mkdir(exist_ok=True)
    save_file(tensors, directory / weights)
    (directory / weights.replace("model.safetensors", "config.json")).write_text(json.dumps(config))
    return directory


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    tensors, config = read(BASE)
    names = tensors.keys() - {"tokens", "logits", "prompt"}
    return write(tmp_path_factory.mktemp("base"), {name: tensors[name] for name in names}, config, "model.safetensors")


def tie(base: Path, directory: Path) -> Path:
    """The base in another directory, with its embedding as its output matrix."""
    tensors, config = load_file(base / "model.safetensors"), json.loads((base / "config.json").read_text())
    del tensors["lm_head.weight"]
    return write(directory, tensors, config | {"tie_word_embeddings": True}, "model.safetensors")


@pytest.fixture
def q_only(tmp_path) -> tuple[Path, dict]:
    """An adapter of one module of the base, and its tensors."""
    rng = np.random.default_rng(0)
    tensors = {f"{Q}A.weight": rng.normal(size=(2, 16)), f"{Q}B.weight": rng.normal(size=(32, 2))}
    tensors = {name: value.astype(np.float32) for name, value in tensors.items()}
    return write(tmp_path / "adapter", tensors, CONFIG), tensors


def test_golden_files_are_there():
    assert len(GOLDEN) == 12


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_logits_are_those_of_peft(path, base, tmp_path):
    tensors, config = read(path)
    wanted = tensors.pop("logits")
    base = tie(base, tmp_path / "tied") if "tied" in path.stem else base
    with warnings.catch_warnings(action="ignore", category=SpecjaxWarning):
        model = load_model(base, adapter=write(tmp_path / "adapter", tensors, config))
    tokens = jnp.asarray(read(BASE)[0]["tokens"])
    np.testing.assert_allclose(scores(model, tokens), wanted, atol=1e-4 * np.abs(wanted).max())
    before = scores(load_model(base), tokens)
    assert np.abs(before - wanted[..., : before.shape[-1]]).max() > 0.1


def test_each_device_merges_its_own_part(base, tmp_path):
    tensors, config = read(next(path for path in GOLDEN if path.stem == "all_linear"))
    adapter = write(tmp_path / "adapter", {name: tensors[name] for name in tensors.keys() - {"logits"}}, config)
    alone, split = (
        load_model(base, Placement(mesh=mesh), adapter=adapter) for mesh in (None, specjax.make_mesh(model=2))
    )
    for ours, theirs in zip(jax.tree.leaves(alone), jax.tree.leaves(split), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)
    assert any(not leaf.sharding.is_fully_replicated for leaf in jax.tree.leaves(split))


def test_a_weight_is_summed_in_float32_and_rounded_once(base, q_only):
    """The base is float32, the adapter too; the model is bfloat16."""
    adapter, tensors = q_only
    w = read(BASE)[0]["model.layers.0.self_attn.q_proj.weight"]
    wanted = jnp.asarray(w + 1.5 * tensors[f"{Q}B.weight"] @ tensors[f"{Q}A.weight"], jnp.bfloat16)
    found = load_model(base, Placement(dtype="bfloat16"), adapter=adapter).layers[0].mixer.qkv[...]
    np.testing.assert_array_equal(found.reshape(2, 4, 8, 16)[:, :2].reshape(32, 16), wanted)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("use_dora", True), ("use_qalora", True), ("lora_bias", True), ("layer_replication", [[0, 1]]),
        ("alora_invocation_tokens", [3]), ("fan_in_fan_out", True),
        ("init_lora_weights", "pissa"), ("peft_type", "IA3"), ("new_option", 1),
    ],
)  # fmt: skip
def test_an_option_that_changes_the_weights_is_refused_by_name(option, value, base, q_only):
    adapter, tensors = q_only
    write(adapter, tensors, CONFIG | {option: value})
    with pytest.raises(ConfigError, match=option):
        load_model(base, adapter=adapter)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: {name.replace("q_proj", "query"): x for name, x in t.items()}, "no model.layers.0.self_attn.query"),
        (lambda t: {name.replace("layers.0", "layers.7"): x for name, x in t.items()}, "no model.layers.7"),
        (lambda t: t | {f"{Q}B.weight": t[f"{Q}B.weight"][:16]}, r"B \(16, 2\), not \(2, 16\) and \(32, 2\)"),
        (lambda t: {name: x for name, x in t.items() if "lora_A" in name}, "has no lora_B"),
        (lambda t: t | {"base_model.model.lm_head.weight": np.ones((3, 16), np.float32)}, "lm_head.weight has shape"),
        (lambda t: t | {NEW: np.ones((2, 16), np.float32)}, r"embed_tokens.weight has new rows \(2, 16\), not \(0, 16\)"),
        (lambda t: {name.replace("q_proj", "o_proj"): x for name, x in t.items()}, "target module 'q_proj' has no"),
    ],
)  # fmt: skip
def test_an_adapter_of_another_model_is_refused_in_one_line(change, words, base, q_only):
    adapter, tensors = q_only
    write(adapter, change(tensors), CONFIG)
    with pytest.raises(CheckpointError, match=words) as error:
        load_model(base, adapter=adapter)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("file", ["adapter_model.safetensors", "adapter_config.json"])
def test_a_missing_file_is_named(file, base, q_only):
    adapter, _ = q_only
    (adapter / file).unlink()
    with pytest.raises(SpecjaxError, match=file):
        load_model(base, adapter=adapter)


def test_drafts_take_adapters_and_heads_do_not(tmp_path):
    target = specjax.load("tiny-python")
    own = specjax.load("tiny-python-draft").config
    A, B = np.ones((2, own.hidden_size), np.float32), np.ones((own.num_heads * own.head_dim, 2), np.float32)
    adapter = write(tmp_path / "adapter", {f"{Q}A.weight": A, f"{Q}B.weight": B}, CONFIG)
    plain, adapted = (specjax.load_drafter("tiny-python-draft", target, adapter=a) for a in (None, adapter))
    assert (plain.model.layers[0].mixer.qkv[...] != adapted.model.layers[0].mixer.qkv[...]).any()
    with pytest.raises(RequestError, match="is a head, and adapters change language models"):
        specjax.load_drafter("tiny-python-mtp", target, adapter=adapter)


def test_new_tokens_outside_the_vocabulary_are_refused(base, q_only):
    adapter, tensors = q_only
    write(adapter, tensors | {NEW: np.ones((1, 16), np.float32)}, CONFIG | {"trainable_token_indices": [32]})
    with pytest.raises(CheckpointError, match="holds a token outside the vocabulary of 32"):
        load_model(base, adapter=adapter)


def test_the_tokenizer_of_an_adapter_replaces_the_models(base, q_only):
    adapter, _ = q_only
    byte_tokenizer(32).save_pretrained(base)
    assert specjax.load(base, adapter=adapter).tokenizer.chat_template is None
    own = byte_tokenizer(32)
    own.chat_template = "{{ messages }}"
    own.save_pretrained(adapter)
    assert specjax.load(base, adapter=adapter).tokenizer.chat_template == "{{ messages }}"
