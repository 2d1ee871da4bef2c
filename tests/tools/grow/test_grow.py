"""Grown models: the logits that transformers recorded for the small model, its texts, its acceptance."""

import dataclasses
import errno
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from support.golden import FILES, read_file
from support.grown import LARGE, TOKENS, grow
from support.models import TINY, language_model, tiny_model

import specjax
from specjax import Generator, load_drafter
from specjax.checkpoints import shards
from specjax.checkpoints.config import read_config, read_shape, to_hf
from specjax.checkpoints.placement import Placement
from specjax.checkpoints.tensors import load_model
from specjax.core import cache as kv
from specjax.errors import CheckpointError, ConfigError, StorageError
from specjax.models.config import Rope
from specjax.tools.grow.grow import grow_head, grow_model
from specjax.tools.grow.shape import grow_config

pytestmark = pytest.mark.usefixtures("small_programs")

GOLDEN = [path for path in FILES if read_file(path.stem)[1]["model_type"] in ("llama", "mistral", "qwen2", "qwen3")]


def logits_of(model, tokens, prompt=None) -> np.ndarray:
    """Logits [B, S, V]. ``prompt`` is the length of the prompt, for dynamic rotary scaling."""
    positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    lengths = None if prompt is None else jnp.maximum(positions + 1, prompt)
    mask = jnp.tril(jnp.ones((tokens.shape[1],) * 2, bool))
    return np.asarray(model.logits(model(jnp.asarray(tokens), positions, mask, rope_lengths=lengths).hidden))


def check_logits(found: np.ndarray, wanted: np.ndarray) -> None:
    """The old tokens have the logits ``wanted``, up to rounding and a common constant.

    New tokens have far lower logits.
    """
    known = wanted.shape[-1]
    assert np.ptp(found[..., :known] - wanted, -1).max() < 1e-4 * np.abs(wanted).max()
    assert (found[..., known:] < found[..., :known].min() - 100).all()


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_logits_are_those_of_transformers_for_the_small_model(path, tmp_path):
    with safe_open(path, framework="numpy") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}
        (tmp_path / "config.json").write_text(file.metadata()["config"])
    tokens, logits, prompt = (tensors.pop(name) for name in ("tokens", "logits", "prompt"))
    save_file(tensors, tmp_path / "model.safetensors")
    small, changes = load_model(tmp_path), LARGE
    if small.config.rope.rope_type in ("dynamic", "yarn"):
        kept = "head_dim", "max_position_embeddings"
        changes = LARGE | {name: getattr(small.config, name) for name in kept}
    grown = grow(small, tmp_path / "grown", **changes)
    assert {name: getattr(grown.config, name) for name in changes} == changes
    check_logits(logits_of(grown.model, tokens, int(prompt)), logits)


ALONE = {
    "the same shape": {},
    "vocabulary and one dimension": dict(vocab_size=62, hidden_size=33, family="mistral"),
    "an output matrix of its own": dict(vocab_size=83, hidden_size=64, tie_embeddings=False),
    "one query head for each key head": dict(num_heads=4, num_kv_heads=4),
    "groups of seven": dict(num_heads=14, num_kv_heads=2, hidden_size=42),
    "an old group of two over two key heads": dict(num_heads=5, num_kv_heads=5, head_dim=16, hidden_size=35),
    "head size": dict(head_dim=40),
    "layers": dict(num_layers=5),
    "qwen2": LARGE | dict(family="qwen2", qkv_bias=True),
    "mistral": LARGE | dict(family="mistral"),
    "all biases": LARGE | dict(qkv_bias=True, out_bias=True, mlp_bias=True),
    "bfloat16": dict(num_layers=3, num_heads=8, num_kv_heads=4, intermediate_size=96, dtype="bfloat16"),
    "float16 and vocabulary": dict(vocab_size=70, hidden_size=128, dtype="float16"),
}


FURTHER = ("an old group of two over two key heads", "qwen2", "float16 and vocabulary")  # each is near another one


@pytest.mark.parametrize(
    "change", [pytest.param(change, marks=pytest.mark.slow if change in FURTHER else ()) for change in ALONE]
)
def test_each_change_of_the_shape(change, tmp_path):
    small, dtype = tiny_model(tie_embeddings=True), ALONE[change].get("dtype", "float32")
    grown = grow(small, tmp_path / "grown", **ALONE[change])
    if dtype != "float32":  # the small model with rounded weights, computed in float32
        graph, params = nnx.split(small)
        small = nnx.merge(graph, jax.tree.map(lambda x: x.astype(dtype).astype(jnp.float32), params))
        grown = dataclasses.replace(grown, model=load_model(grown.name, Placement(dtype="float32")))
    check_logits(logits_of(grown.model, TOKENS), logits_of(small, TOKENS))


def test_cache_and_rotary_positions_are_those_of_the_shape(tmp_path):
    small = tiny_model(eos_token_ids=(3, 5), rope=dataclasses.replace(TINY.rope, theta=500.0))
    like = TINY.replace(**LARGE, eos_token_ids=(), norm_eps=0.1, dtype="bfloat16")
    config = grow_model(language_model(small), like, tmp_path / "grown")
    assert config.replace(windows=(None,) * 3) == read_config(tmp_path / "grown")
    assert config.rope == small.config.rope and config.eos_token_ids == (3, 5)
    cache = kv.empty(config, 2, 128, jnp.bfloat16)
    assert [leaf.shape for layer in cache.layers for leaf in layer] == [(2, 4, 128, 24)] * 6


def test_most_of_a_grown_model_is_random(tmp_path):
    """Layers read with whole matrices, and only what they write is sparse: the new layers write nothing."""
    grown = grow(tiny_model(), tmp_path / "grown", **LARGE)
    for layer in grown.model.layers:
        assert (
            np.mean(np.asarray(layer.mlp.gate_up[...]) != 0) > 0.95
            and np.mean(np.asarray(layer.mixer.qkv[...]) != 0) > 0.6
        )
    assert not np.any(grown.model.layers[2].mixer.out[...]) and not np.any(grown.model.layers[2].mlp.down[...])


@pytest.mark.slow
def test_texts_and_acceptance_with_the_same_draft(pair, draft):
    prompts = [[5, 9, 2, 33], [7] * 9]
    one, two = (Generator(model, "draft_model", draft, num_speculative_tokens=3) for model in pair)
    for options in (dict(), dict(temperature=0.8, seed=3)):
        found = [generator(prompts, max_new_tokens=40, ignore_eos=True, **options) for generator in (one, two)]
        for small, large in zip(*found):
            assert small.token_ids == large.token_ids or options
            assert max(large.token_ids) < TINY.vocab_size
            if not options:
                assert small.stats.accepted_at == large.stats.accepted_at and small.stats.accepted > 5


def test_files_of_a_few_gigabytes_have_an_index(tmp_path, monkeypatch):
    one = grow(tiny_model(), tmp_path / "one", **LARGE)
    monkeypatch.setattr(shards, "SHARD", 40_000)
    several = grow(tiny_model(), tmp_path / "several", **LARGE)
    files = sorted(path.name for path in (tmp_path / "several").glob("*.safetensors"))
    assert len(files) > 3 and files[0] == f"model-00001-of-{len(files):05}.safetensors"
    sizes = [sum(x.nbytes for x in load_file(tmp_path / "several" / file).values()) for file in files]
    assert sum(size > 40_000 for size in sizes) <= sum(x.size * 4 > 40_000 for x in leaves(one.model))
    index = json.loads((tmp_path / "several" / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(sizes) and set(index["weight_map"].values()) == set(files)
    for a, b in zip(leaves(one.model), leaves(several.model)):
        np.testing.assert_array_equal(a, b)


def leaves(model) -> list:
    return jax.tree.leaves(nnx.state(model))


GROUPS = TINY.replace(num_heads=6)
WINDOWS = TINY.replace(family="mistral", windows=(16, 16))
REFUSED = [
    (TINY.replace(family="gemma2", normed="both"), {}, "model_type is gemma2; it must be a family with Llama's layers"),
    (TINY, dict(vocab_size=60), "vocab_size is 60; it must be at least 61"),
    (TINY, dict(hidden_size=24), "hidden_size is 24; it must be at least 32"),
    (TINY, dict(intermediate_size=47), "intermediate_size is 47; it must be at least 48"),
    (TINY, dict(num_layers=1), "num_hidden_layers is 1; it must be at least 2"),
    (TINY, dict(num_heads=2), "num_attention_heads is 2; it must be at least 4"),
    (TINY, dict(max_position_embeddings=128), "max_position_embeddings is 128; it must be at least 256"),
    (TINY, dict(head_dim=12), "head_dim is 12; it must be a multiple of 8"),
    (TINY, dict(num_kv_heads=1), "num_key_value_heads is 1; it must be at least 2, because 4 query heads share one"),
    (GROUPS, dict(num_kv_heads=3), "num_key_value_heads is 3; it must be at least 4, because 2 query heads share one"),
    (TINY, dict(vocab_size=62), "hidden_size is 32; it must be at least 33, because a larger vocabulary"),
    (TINY, dict(hidden_size=42), "hidden_size is 42; it must be a multiple of num_attention_heads, 4, or transformers"),
    (TINY, dict(tie_embeddings=True), "tie_word_embeddings is true; it must be false"),
    (TINY.replace(qkv_bias=True), dict(qkv_bias=False), "attention_bias is false; it must be true"),
    (TINY.replace(mlp_bias=True), dict(mlp_bias=False), "mlp_bias is false; it must be true"),
    (TINY, dict(family="qwen3", qk_norm=True), "model_type is qwen3; it must be llama, mistral or qwen2"),
    (TINY.replace(qk_norm=True), dict(qk_norm=False), "model_type is llama; it must be qwen3"),
    (WINDOWS, dict(family="llama"), "model_type is llama; it must be mistral, because small has attention windows"),
    (WINDOWS.replace(windows=(None, 16)), dict(family="mistral"), "model_type is mistral"),
    (TINY.replace(rope=Rope(rope_type="yarn")), dict(head_dim=16), "head_dim is 16; it must be 8, because of rope"),
    (
        TINY.replace(rope=Rope(rope_type="dynamic")),
        dict(max_position_embeddings=512),
        "max_position_embeddings is 512; it must be 256, because of rope scaling 'dynamic'",
    ),
]


@pytest.mark.parametrize("old, changes, words", REFUSED)
def test_a_shape_that_cannot_hold_the_model_is_refused_by_its_field(old, changes, words):
    with pytest.raises(ConfigError, match=f"^small cannot grow to this shape: {words}") as error:
        grow_config(old, old.replace(**changes), "small")
    assert "\n" not in str(error.value)


def test_directories_that_cannot_take_the_model(target, tmp_path, monkeypatch):
    grow = lambda directory: grow_model(target, TINY, directory)
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="exists and is not empty; name a new directory"):
        grow(tmp_path)
    for directory in (tmp_path / "file", tmp_path / "file" / "below", "/proc/none"):
        with pytest.raises(CheckpointError, match=f"^{directory}: cannot be written"):
            grow(directory)
    usage = shutil.disk_usage(tmp_path)._replace(free=50_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(StorageError, match=r"7\.77e-05 GB are needed and 5e-05 GB are free; make room"):
        grow(tmp_path / "new")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


FULL = OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("error, seen", [(KeyboardInterrupt(), KeyboardInterrupt), (FULL, StorageError)])
@pytest.mark.parametrize("made", [True, False])
def test_nothing_remains_of_half_a_model(target, tmp_path, monkeypatch, error, seen, made):
    """The third file is not written: by Ctrl-C, and by a disk that fills up. A directory of the user stays, empty."""
    directory, count, save = tmp_path / "grown", iter(range(9)), shards.save_file
    if not made:
        directory.mkdir()

    def save_file(tensors, path, metadata):
        assert not (directory / "config.json").exists()  # without it nothing loads, even if the process is killed
        if next(count) == 2:
            raise error
        save(tensors, path, metadata)

    monkeypatch.setattr(shards, "SHARD", 4_000)
    monkeypatch.setattr(shards, "save_file", save_file)
    with pytest.raises(seen):
        grow_model(target, TINY, directory)
    assert next(count) == 3
    assert not directory.exists() if made else list(directory.iterdir()) == []


def test_a_shape_is_read_from_a_file_or_a_directory(tmp_path):
    (tmp_path / "shape.json").write_text(json.dumps(to_hf(TINY)))
    grow_model(language_model(tiny_model()), read_shape(tmp_path / "shape.json"), tmp_path / "grown")
    assert read_shape(tmp_path / "shape.json") == read_shape(tmp_path / "grown") == read_config(tmp_path / "grown")
    with pytest.raises(CheckpointError, match="no model shape"):
        read_shape(tmp_path / "other.json")


@pytest.mark.slow
@pytest.mark.parametrize("method", ["draft_model", "eagle3"])
def test_the_embedded_models_grown(method, tmp_path):
    """Whatever weights are embedded: the same greedy text, in the same rounds."""
    small = specjax.load("tiny-python", dtype="float32")
    changes = dict(hidden_size=448, intermediate_size=1100, num_layers=9, num_heads=8, num_kv_heads=4, vocab_size=4200)
    grow_model(small, small.config.replace(**changes), tmp_path / "target")
    grown, name = specjax.load(tmp_path / "target", dtype="float32"), f"tiny-python-{method}"
    if method == "draft_model":
        drafts = ["tiny-python-draft"] * 2
    else:
        grow_head(load_drafter(name, small), small, grown.config, tmp_path / "head")
        drafts = [name, tmp_path / "head"]
    found = []
    for model, draft in zip((small, grown), drafts):
        found.append(Generator(model, method, draft)("class Stack:\n    def ", max_new_tokens=48, ignore_eos=True))
    assert found[0].token_ids == found[1].token_ids
    assert found[0].stats.accepted_at == found[1].stats.accepted_at and found[0].stats.accepted > 5
