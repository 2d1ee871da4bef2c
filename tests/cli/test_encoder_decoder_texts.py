"""Encoder-decoders as a user meets them: prompts, texts, commands, and one line for what they do not support."""

import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.command_line import assert_one_line, specjax_main
from support.decoding import decode_all
from support.golden import golden_model
from support.models import disturbed, language_model, p_value, tiny_model

import specjax
from specjax import Engine, Generator, LanguageModel, RequestError
from specjax.checkpoints.config import from_hf, read_config, to_hf
from specjax.checkpoints.placement import Placement
from specjax.checkpoints.tensors import load_model, save_model
from specjax.drafters import DraftModel
from specjax.loop.prefill import read_source

NAMES = ["t5", "t5_1.1", "bart"]
PROMPT = [5, 7, 9, 11, 4, 8, 6]


@pytest.fixture(scope="module")
def models() -> dict[str, LanguageModel]:
    return {name: language_model(golden_model(name), name) for name in NAMES}


@pytest.fixture(scope="module")
def saved(models, tmp_path_factory):
    """The directories of a target, of a draft, and of a draft without an encoder."""
    target = models["t5"]
    made = {
        "target": target,
        "draft": language_model(disturbed(target.model, 0.2)),
        "decoder": language_model(tiny_model(vocab_size=32)),
    }
    root = tmp_path_factory.mktemp("encoder_decoders")
    for name, model in made.items():
        specjax.save(model, root / name)
    return {name: str(root / name) for name in made}


@pytest.mark.parametrize(
    "method", ["lookahead", "early_exit", "layer_skip", "quantized_self", "partial_cache", "eagle3"]
)
def test_methods_that_need_a_decoder_alone_are_refused(method: str, specjax_main, saved):
    found = specjax_main("generate", "--model", saved["target"], "--prompt", "#$", "--method", method)
    assert_one_line(found, f"method '{method}' is for models without an encoder, and t5 has one")


@pytest.mark.parametrize(
    "options, words",
    [
        (["--draft", "decoder"], "an encoder-decoder drafts for encoder-decoders"),
        (["--kv-quantize", "int8"], "kv_quantize is for models without an encoder"),
        (["--mesh", "data=1"], "a mesh is for models without an encoder"),
    ],
)
def test_options_that_need_a_decoder_alone_are_refused(options, words: str, specjax_main, saved):
    options = [saved.get(option, option) for option in options]
    assert_one_line(specjax_main("generate", "--model", saved["target"], "--prompt", "#$", *options), words)


@pytest.mark.parametrize(
    "words, command",
    [
        ("beam search", ["beams", "--prompt", "#$"]),
        ("doctor", ["doctor", "--method", "ngram"]),
        ("tune", ["tune", "--tree", "--draft", "draft"]),
        pytest.param("tune", ["tune", "--layers"], marks=pytest.mark.slow),
        pytest.param("tune", ["tune", "--lookahead"], marks=pytest.mark.slow),
        ("plan", ["plan", "--device", "v5e:1"]),
        ("design", ["design", "--acceptance", "0.8"]),
        ("training", ["train", "--recipe", "medusa"]),
        ("growth", ["grow", "--like", "target", "--output", "grown"]),
    ],
)
def test_commands_that_need_a_decoder_alone_refuse(words: str, command, specjax_main, saved, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command = [saved.get(argument, argument) for argument in command]
    assert_one_line(specjax_main(*command, "--model", saved["target"]), f"{words} is for models without an encoder")


def test_layers_in_the_hosts_memory_are_refused(saved):
    with pytest.raises(RequestError, match="offload is for models without an encoder, and t5 has one"):
        load_model(saved["target"], Placement(offload=True))


def test_an_engine_refuses_them(models):
    with pytest.raises(RequestError, match="an engine is for models without an encoder"):
        Engine(models["t5"])


def test_a_source_beyond_the_encoders_positions_is_refused(models):
    with pytest.raises(RequestError, match="70 tokens and the model's context is 64"):
        Generator(models["bart"]).start([5] * 70)


def test_a_text_ends_at_the_decoders_last_position(models):
    """A decoder with 64 positions writes 63 tokens after its first, behind sources of any length."""
    config = models["bart"].config
    assert config.most_tokens(np.array([1 + 1, 50 + 1])).tolist() == [1 + 64, 50 + 64]


@pytest.mark.slow
def test_generate_writes_the_same_text_with_each_method(specjax_main, saved):
    ask = ("generate", "--model", saved["target"], "--prompt", "#$%&'(", "--max-new-tokens", "10", "--ignore-eos")
    code, out, err = specjax_main(*ask, "--json")
    plain = json.loads(out)
    assert (code, err, len(plain["token_ids"])) == (0, "", 10)
    assert plain["prompt_token_ids"][-1] == 0  # the decoder's first token
    for options in (("--method", "ngram"), ("--draft", saved["draft"])):
        code, out, _ = specjax_main(*ask, *options, "--json")
        assert code == 0 and json.loads(out)["token_ids"] == plain["token_ids"]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_models_go_to_transformers_and_back(name: str, models, tmp_path):
    torch = pytest.importorskip("torch", reason="models of transformers need torch")
    transformers = pytest.importorskip("transformers")
    ours = models[name]
    save_model(ours.model, tmp_path / "ours")
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "ours").eval()
    found = Generator(ours, "none")(PROMPT, max_new_tokens=12)
    with torch.no_grad():  # its cache of T5 has no room for a decoder with more layers than the encoder
        wanted = theirs.generate(
            torch.tensor([PROMPT]),
            max_new_tokens=12,
            do_sample=False,
            num_beams=1,
            forced_eos_token_id=None,
            use_cache=False,
        )
    begin = list(ours.config.decoder_prompt)
    assert wanted[0].tolist() == begin + found.token_ids and found.prompt_token_ids == PROMPT + begin
    theirs.save_pretrained(tmp_path / "theirs")
    again = load_model(tmp_path / "theirs")
    assert again.config == read_config(tmp_path / "ours") == from_hf(to_hf(ours.config))
    for new, old in zip(jax.tree.leaves(again), jax.tree.leaves(ours.model), strict=True):
        np.testing.assert_array_equal(new, old)


@pytest.mark.slow
def test_texts_have_the_targets_law():
    """Drafted texts of three tokens come as often as the target's probabilities of all 125 texts say."""
    V, length, source, rows = 5, 3, [1, 2, 4, 1], 2000
    config = from_hf(to_hf(golden_model("t5").config) | dict(vocab_size=V, eos_token_id=None, bos_token_id=None))
    target, draft = (tiny_model(seed, config=config, sharpness=12.0) for seed in (0, 1))
    prompt = [*source, *config.decoder_prompt]
    drafter = DraftModel(num_speculative_tokens=2)
    options = dict(limit=len(prompt) + length, capacity=16, chunk=16, temperature=1.0, seeds=np.arange(rows))
    state, found = decode_all(target, draft, drafter, [prompt] * rows, **options)
    assert 0.1 < state.counters.accepted_at.sum() / state.counters.drafted.sum() < 0.95

    texts = np.array([*itertools.product(range(V), repeat=length)])
    tokens = np.concatenate([np.zeros((len(texts), 1), int), texts[:, :-1]], 1)
    sources = jnp.asarray(np.tile([*source, 0, 0], (len(texts), 1)))
    cache = read_source(target, sources, jnp.full(len(texts), len(source)), jnp.dtype("float32"))
    out = target(jnp.asarray(tokens), cache.length[:, None] + jnp.arange(length), jnp.tri(length, dtype=bool), cache)
    log_p = np.asarray(jax.nn.log_softmax(target.logits(out.hidden)), np.float64)
    law = np.exp(np.take_along_axis(log_p, texts[:, :, None], 2).sum((1, 2)))
    counts = np.bincount(np.ravel_multi_index(np.array(found).T, (V,) * length), minlength=V**length)
    assert law.max() < 0.5 and p_value(counts, law) > 1e-4
