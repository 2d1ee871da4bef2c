"""Generators: several samples of a prompt, conversations, and new weights, on tiny models."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from support.models import byte_tokenizer, language_model, p_value, tiny_model
from transformers import AddedToken

from specjax import Generator, LanguageModel, RequestError, generate, load
from specjax.errors import SpecjaxWarning
from specjax.text.session import Session

TEMPLATE = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"


@pytest.fixture(scope="module")
def target() -> LanguageModel:
    model = tiny_model(0, num_layers=1)
    tokenizer = byte_tokenizer(model.config.vocab_size)
    tokenizer.chat_template = TEMPLATE
    return LanguageModel(model, model.config, tokenizer, "tiny")


@pytest.fixture(scope="module")
def generator(target) -> Generator:
    return Generator(target, "ngram")


OPTIONS = dict(max_new_tokens=8, temperature=1.0, ignore_eos=True)


def test_a_model_in_float16_writes_the_texts_of_the_same_numbers_in_float32():
    half = tiny_model(0, num_layers=1, dtype="float16")
    graph, parameters = nnx.split(half)
    parameters = jax.tree.map(lambda x: x.astype(jnp.float32) if x.dtype == jnp.float16 else x, parameters)
    full = tiny_model(0, num_layers=1)
    nnx.update(full, parameters)
    prompts = [[5, 6, 7], [9, 8, 7, 6]]
    texts = [
        [result.token_ids for result in Generator(language_model(model), "ngram")(prompts, max_new_tokens=16)]
        for model in (half, full)
    ]
    assert texts[0] == texts[1]


def test_samples_differ_and_the_first_is_that_of_the_seed_alone(generator):
    prompts = [[5, 6, 7], [9, 8, 7, 6]]
    results = generator(prompts, n=3, seed=[1, 2], **OPTIONS)
    assert [r.sample for r in results] == [0, 1, 2] * 2
    assert [r.prompt_token_ids for r in results] == [prompts[0]] * 3 + [prompts[1]] * 3
    assert len({tuple(r.token_ids) for r in results}) == 6
    alone = generator(prompts, seed=[1, 2], **OPTIONS)
    assert [results[0].token_ids, results[3].token_ids] == [r.token_ids for r in alone]


def test_the_prompt_of_several_samples_is_read_once(generator, monkeypatch):
    shapes = []
    compile_once = Session.compile

    def watched(self, key, function, modules, args, *rest):
        if key[0] == "prefill":
            shapes.append(args[0].tokens.shape[0])
        return compile_once(self, key, function, modules, args, *rest)

    monkeypatch.setattr(Session, "compile", watched)
    assert len(generator([5, 6, 7], n=6, **OPTIONS)) == 6  # as many rows as in the test above
    assert shapes == [1]


@pytest.mark.slow
def test_samples_follow_the_law_of_plain_sampling(target):
    """First tokens of many samples of one seed, against those of as many seeds: a chi-square test."""
    generator, rows = Generator(target, "none"), 512
    options = dict(max_new_tokens=1, temperature=1.0, top_k=4, ignore_eos=True)
    samples = generator([5, 6, 7], n=rows, seed=3, **options)
    seeds = generator([[5, 6, 7]] * rows, seed=list(range(rows)), **options)
    counts = [np.bincount([r.token_ids[0] for r in results], minlength=61) for results in (samples, seeds)]
    assert p_value(counts[0], counts[1] + 0.5 * (counts[1] > 0)) > 1e-4


def test_equal_prompts_with_one_seed_give_equal_texts(generator):
    one, two = generator([[5, 6, 7]] * 2, seed=4, **OPTIONS)
    assert one.token_ids == two.token_ids


def test_messages_are_the_prompt_of_the_template(generator, target):
    messages = [{"role": "user", "content": "!"}]
    result = generator(messages=messages, max_new_tokens=4, ignore_eos=True)
    rendered = target.tokenizer.encode("user:!;assistant:", add_special_tokens=False)
    assert result.prompt_token_ids == rendered
    assert result.token_ids == generator(rendered, max_new_tokens=4, ignore_eos=True).token_ids
    both = generator(messages=[messages, messages], max_new_tokens=4, ignore_eos=True)
    assert [r.token_ids for r in both] == [result.token_ids] * 2


def test_results_say_which_tokens_are_accepted_drafts(generator):
    """In every round but the last, all emitted tokens but the newest; the statistics count them."""
    results = list(generator.stream_results([5, 6, 7] * 4, max_new_tokens=24, rounds=1, ignore_eos=True))
    lengths = [0, *(len(result.token_ids) for result in results)]
    whole = results[-1]
    for begin, end in zip(lengths[:-2], lengths[1:-1]):
        assert whole.from_draft[begin:end] == [True] * (end - begin - 1) + [False]
    assert len(whole.from_draft) == len(whole.token_ids) and sum(whole.from_draft) == whole.stats.accepted > 0
    assert all(a.text == whole.text[: len(a.text)] for a in results)


def test_a_stream_of_a_conversation_ends_as_the_whole_answer_does(generator):
    messages, options = [{"role": "user", "content": "!"}], dict(max_new_tokens=4, ignore_eos=True)
    *_, last = generator.stream_results(messages=messages, **options)
    whole = generator(messages=messages, **options)
    assert (last.text, last.token_ids, last.prompt_token_ids) == (whole.text, whole.token_ids, whole.prompt_token_ids)
    with pytest.raises(RequestError, match="one prompt and one sample"):
        next(generator.stream([5, 6], n=2))


def test_the_end_of_a_turn_stops_the_row_and_is_no_text(target):
    """Also where the tokenizer does not call the token special, as some chat models do not."""
    tokenizer = byte_tokenizer(target.config.vocab_size)
    tokenizer.add_tokens(AddedToken(";", special=False, normalized=False))
    tokenizer.chat_template = TEMPLATE
    end = tokenizer.convert_tokens_to_ids(";")
    generator = Generator(LanguageModel(target.model, target.config, tokenizer, "tiny"), "none")
    options = dict(max_new_tokens=8, logit_bias={end: 100.0}, min_new_tokens=3, ignore_eos=False)
    chat = generator(messages=[{"role": "user", "content": "!!"}], **options)
    assert chat.finish_reason == "stop" and chat.token_ids[3:] == [end]
    assert chat.text == tokenizer.decode(chat.token_ids[:3]) and chat.stop_reason is None
    named = generator(chat.prompt_token_ids, stop_token_ids=[end], **options)
    assert named.token_ids == chat.token_ids and named.text == chat.text + ";" and named.stop_reason == end


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (dict(), "give prompts or messages"),
        (dict(prompts="!", messages=[{"role": "user", "content": "!"}]), "give prompts or messages"),
        (dict(messages=[]), "messages is empty"),
        (dict(messages="hello"), "messages must be a list"),
        (dict(messages=[{"role": "user"}]), "content"),
    ],
)
def test_bad_conversations_are_one_line(generator, arguments, named):
    with pytest.raises(RequestError, match=named) as error:
        generator(**arguments)
    assert "\n" not in str(error.value)


@pytest.mark.slow
def test_a_generator_takes_its_target_by_name():
    assert Generator("tiny-python", "none")(messages=[{"role": "user", "content": "hi"}], max_new_tokens=4).text


def test_generate_takes_messages(target, generator):
    messages = [{"role": "user", "content": "hi"}]
    own = dict(messages=messages, method="ngram", max_new_tokens=4)
    assert generate(target, **own).token_ids == generator(messages=messages, max_new_tokens=4).token_ids
    target = LanguageModel(target.model, target.config, byte_tokenizer(target.config.vocab_size), "without a template")
    with pytest.raises(RequestError, match="chat template"):
        generate(target, **own)


def test_new_weights_compile_nothing_and_others_are_refused(target):
    generator, other = Generator(target, "none"), tiny_model(1, num_layers=1)
    before = generator([5, 6, 7], max_new_tokens=6, ignore_eos=True)
    generator.update(nnx.state(other))
    after = generator([5, 6, 7], max_new_tokens=6, ignore_eos=True)
    assert after.stats.compile_seconds == 0 and after.token_ids != before.token_ids
    fresh = Generator(LanguageModel(other, other.config, target.tokenizer, "other"), "none")
    assert fresh([5, 6, 7], max_new_tokens=6, ignore_eos=True).token_ids == after.token_ids
    with pytest.raises(RequestError, match="make a new Generator"):
        generator.update(jax.tree.map(lambda x: x.astype("bfloat16"), other))


def test_a_text_beyond_the_drafts_own_context_is_told_once(target):
    short = language_model(tiny_model(num_layers=1, max_position_embeddings=40), "short")
    generator = Generator(target, "draft_model", short)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("default", SpecjaxWarning)
        for new_tokens in (10, 60, 70):
            generator.read_options([5, 6], max_new_tokens=new_tokens)
    assert [str(one.message) for one in told] == [
        "draft 'short' knows 40 positions; beyond them few drafts are accepted"
    ]


def test_a_large_tree_on_a_processor_is_named():
    target = load("tiny-python")
    with pytest.warns(SpecjaxWarning, match="trees of 59 nodes.*num_speculative_tokens=3 is faster here"):
        Generator(target, "eagle3", "tiny-python-eagle3")
    with warnings.catch_warnings():
        warnings.simplefilter("error", SpecjaxWarning)
        Generator(target, "eagle3", "tiny-python-eagle3", num_speculative_tokens=3)
        Generator(target, "eagle3", "tiny-python-eagle3", tree_nodes=59)
