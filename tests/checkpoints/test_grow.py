"""Grown models: the logits that transformers recorded for the small model, its texts, its acceptance, its heads' drafts."""

import dataclasses
import errno
import json
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from support.head_cases import MADE, parameters
from support.models import TINY, byte_tokenizer, language_model, random_head, tiny_model
from support.published_heads import DEEP, write

import specjax
from specjax import Generator, LanguageModel, load_drafter
from specjax import cache as kv
from specjax.checkpoints import shards
from specjax.checkpoints.config import read_config, to_hf
from specjax.checkpoints.grow import grow_head, grow_model
from specjax.checkpoints.growth.shape import grow_config, read_shape
from specjax.checkpoints.tensors import load_model
from specjax.errors import CheckpointError, ConfigError, StorageError
from specjax.heads import (
    KINDS,
    BlockConfig,
    Eagle3Config,
    EagleConfig,
    Head,
    HydraConfig,
    MedusaConfig,
    MtpConfig,
)
from specjax.models import decoder
from specjax.models.config import Rope

GOLDEN = sorted((Path(__file__).parents[1] / "models" / "golden").glob("*.safetensors"))

LARGE = dict(
    vocab_size=83,
    hidden_size=60,
    intermediate_size=60,
    num_layers=3,
    num_heads=12,
    num_kv_heads=4,
    head_dim=24,
    max_position_embeddings=512,
)
"""A shape larger than ``TINY`` in everything. Groups of three heads instead of two."""


@pytest.fixture(scope="module", autouse=True)
def small_programs():
    """Parts of models are compiled instead of whole models. Most models share them, which is several times faster."""
    with pytest.MonkeyPatch.context() as patch:
        for name, static in {"attend": "window", "rms_norm": "eps", "linear": (), "rotate": ()}.items():
            patch.setattr(decoder, name, jax.jit(getattr(decoder, name), static_argnames=static))
        yield


def grow(model, directory, **changes) -> LanguageModel:
    """The model in another shape, read again from its directory."""
    grow_model(language_model(model), model.config.replace(**changes), directory)
    return LanguageModel(load_model(directory), read_config(directory), byte_tokenizer(), str(directory))


def logits_of(model, tokens, prompt=None) -> np.ndarray:
    """Logits [B, S, V]. ``prompt`` is the length of the prompt, for dynamic rotary scaling."""
    positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    lengths = None if prompt is None else jnp.maximum(positions + 1, prompt)
    mask = jnp.tril(jnp.ones((tokens.shape[1],) * 2, bool))
    return np.asarray(model.logits(model(jnp.asarray(tokens), positions, mask, rope_lengths=lengths).hidden))


def check_logits(found: np.ndarray, wanted: np.ndarray) -> None:
    """The old tokens have the logits ``wanted``, up to rounding and a common constant; new tokens have none to speak of."""
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


TOKENS = np.random.default_rng(0).integers(0, TINY.vocab_size, (2, 24))
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


@pytest.mark.parametrize("change", ALONE)
def test_each_change_of_the_shape(change, tmp_path):
    small, dtype = tiny_model(tie_embeddings=True), ALONE[change].get("dtype", "float32")
    grown = grow(small, tmp_path / "grown", **ALONE[change])
    if dtype != "float32":  # the small model with rounded weights, computed in float32
        graph, params = nnx.split(small)
        small = nnx.merge(graph, jax.tree.map(lambda x: x.astype(dtype).astype(jnp.float32), params))
        grown = dataclasses.replace(grown, model=load_model(grown.name, "float32"))
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
        assert np.mean(np.asarray(layer.gate_up[...]) != 0) > 0.95 and np.mean(np.asarray(layer.qkv[...]) != 0) > 0.6
    assert not np.any(grown.model.layers[2].out[...]) and not np.any(grown.model.layers[2].down[...])


@pytest.fixture(scope="module")
def pair(target, tmp_path_factory) -> tuple[LanguageModel, LanguageModel]:
    """A target, and the target grown in everything."""
    return target, grow(target.model, tmp_path_factory.mktemp("pair") / "grown", **LARGE)


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


LAYERS = TINY.replace(num_layers=1, num_heads=2, num_kv_heads=1, head_dim=8, intermediate_size=40, norm_eps=1e-3)
NARROW = LAYERS.replace(hidden_size=24, num_layers=2, qk_norm=True, family="qwen3")
EAGLE3 = Eagle3Config(LAYERS, 32, 2, (0, 1, 2), 40)
BLOCK = BlockConfig(LAYERS, 32, 2, (1, 2), 60, block_size=5)
HEADS = {
    "eagle": EagleConfig(LAYERS, 2),
    "eagle, no bias": EagleConfig(LAYERS, 2, bias=False, own_embedding=True, first_norm=True),
    "eagle3": EAGLE3,
    "eagle3, 3.1": dataclasses.replace(EAGLE3, fc_norm=True, norm_output=True),
    "eagle3, narrow": dataclasses.replace(EAGLE3, layers=NARROW, own_embedding=True),
    "eagle3, parallel": dataclasses.replace(EAGLE3, norm_before_fc=True, norm_before_residual=True, mask_token=60),
    "mtp": MtpConfig(LAYERS, 2, modules=2),
    "mtp, own": MtpConfig(LAYERS, 2, False, True, True, True, True),
    "medusa": MedusaConfig(32, 2, 61, 2, 2),
    "hydra": HydraConfig(32, 2, 61, 2, 2, head_bias=True),
    "hydra, prefix": HydraConfig(32, 2, 61, 2, own_embedding=True, layers=TINY.replace(num_layers=1)),
    "block": BLOCK,
    "block, own": dataclasses.replace(
        BLOCK, layers=NARROW, own_embedding=True, own_head=True, markov_rank=4, markov="rnn", confidence=True
    ),
    "block, gated": dataclasses.replace(BLOCK, markov_rank=4, markov="gated", confidence=True, confidence_markov=True),
}
FIRST_TIER = ("eagle3", "mtp")


def head_of(config) -> Head:
    head = random_head(KINDS[config.kind].module, config)
    if config.kind == "eagle3":  # the draft vocabulary is every token from 21 on
        head.draft_to_target[...] = jnp.full(config.draft_vocab_size, 21, jnp.int32)
    return Head(head, config, "head")


def predictions(head: Head, target: LanguageModel) -> list[np.ndarray]:
    """The logits of the head for three steps after a text, and the confidence of a block head."""
    module, config, N = head.module, head.config, TOKENS.shape[1] - 2
    tokens, positions = jnp.asarray(TOKENS), jnp.broadcast_to(jnp.arange(N), (2, N))
    mask = jnp.tril(jnp.ones((N, N), bool))
    taps = target.model(tokens[:, :N], positions, mask, taps=config.taps).taps
    if config.kind == "block":
        rows, read = module.context(taps, positions, jnp.float32), jnp.array([[7, 60, 60, 60]] * 2)
        seen = jnp.ones((4, N + 4), bool)
        out = module(target.model, read, N + jnp.zeros_like(read) + jnp.arange(4), None, seen, rows)
        code = None if module.markov is None else module.markov.codes(out.hidden, tokens[:, :4])
        sure = [] if module.confidence is None else [module.sure(out.hidden, tokens[:, :4])]
        return [np.asarray(x) for x in (module.logits(target.model, out.hidden, code), *sure)]
    features = module.fuse(target.model, taps)
    if config.num_heads:
        hidden = module(target.model, tokens[:, 1 : N + 1], features, positions, mask).hidden[:, -1]
        return [np.asarray(module.logits(target.model, k, hidden, tokens[:, : k + 1])) for k in range(config.num_heads)]
    found = []
    for step in range(3):
        part = module.modules[min(step, config.modules - 1)]
        read = tokens[:, 1 + min(step, 1) : N + 1 + min(step, 1)]
        out = part(target.model, read, features, positions, mask)
        features = out.hidden
        found.append(np.asarray(part.logits(target.model, features)))
    return found


def test_every_kind_of_head_grows():
    assert {config.kind for config in HEADS.values()} == KINDS.keys()


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in FIRST_TIER else pytest.mark.slow) for name in HEADS]
)
def test_a_grown_head_predicts_the_same(name, pair, tmp_path):
    head = head_of(HEADS[name])
    config = grow_head(head, pair[0], pair[1].config, tmp_path / "head")
    grown = load_drafter(tmp_path / "head", pair[1])
    assert (config.target_layers, config.target_size, config.vocab_size) == (3, 60, 83)
    assert config.layers is None or (config.layers.num_heads, config.layers.intermediate_size) == (12, 60)
    for small, large in zip(predictions(head, pair[0]), predictions(grown, pair[1])):
        if small.shape[-1] == TINY.vocab_size:
            known = small > -1e20
            assert large[..., 61:].max() < small[known].min() - 50  # new tokens
            small, large = small[known].reshape(2, -1), large[..., :61][known].reshape(2, -1)
        np.testing.assert_allclose(large, small, rtol=1e-4, atol=1e-4 * np.abs(small).max())


@pytest.mark.slow
@pytest.mark.parametrize("case", MADE)
def test_a_grown_head_keeps_its_layout(case, tmp_path):
    head = load_drafter(write(tmp_path / "head", *MADE[case]()), DEEP)
    like = DEEP.config.replace(**LARGE | dict(num_layers=8))
    config = grow_head(head, DEEP, like, tmp_path / "grown")
    target = language_model(tiny_model(config=grow_config(DEEP.config, like, "deep")))
    grown = load_drafter(tmp_path / "grown", target)
    assert (grown.layout, grown.config.kind, grown.config.taps) == (head.layout, config.kind, config.taps)
    assert parameters(grown.module).keys() == parameters(head.module).keys()


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


def test_a_head_that_the_shape_cannot_hold_is_refused(pair, tmp_path):
    wide = head_of(dataclasses.replace(EAGLE3, layers=LAYERS.replace(intermediate_size=61)))
    normed = head_of(dataclasses.replace(EAGLE3, layers=NARROW, own_embedding=True, fc_norm=True))
    for head, words in ((wide, "intermediate_size is 60; it must be at least 61"), (normed, "hidden_size is 24")):
        with pytest.raises(ConfigError, match=f"^head cannot grow.*{words}"):
            grow_head(head, pair[0], pair[1].config, tmp_path / "head")
        assert not (tmp_path / "head").exists()


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
    with pytest.raises(CheckpointError, match=r"no other\.json here"):
        read_shape(tmp_path / "other.json")


@pytest.mark.slow
@pytest.mark.parametrize("method", ["draft_model", "eagle3", "mtp", "medusa", "block"])
def test_the_embedded_models_grown(method, tmp_path):
    """Whatever weights are embedded: the same greedy text, in the same rounds."""
    small = specjax.load("tiny-python", dtype="float32")
    changes = dict(hidden_size=448, intermediate_size=1100, num_layers=9, num_heads=8, num_kv_heads=4, vocab_size=4200)
    grow_model(small, small.config.replace(**changes), tmp_path / "target")
    grown, name = specjax.load(tmp_path / "target"), f"tiny-python-{method}"
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
