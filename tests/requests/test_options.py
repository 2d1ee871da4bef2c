"""Options through generators, against plain decoding and plain Python."""

import dataclasses
import re
import string

import jax.numpy as jnp
import numpy as np
import pytest
from support.models import TINY, disturbed, language_model, random_prompts, tiny_model
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from specjax import Generator, LanguageModel, RequestError, generate
from specjax.errors import NumericsError
from specjax.requests.options import Options
from specjax.text.result import results_of
from specjax.tools.evaluate.fidelity import logits_after

METHODS = ["none", "ngram", "draft_model"]
V = TINY.vocab_size


def letters() -> PreTrainedTokenizerFast:
    """Token 0 ends; then the bytes of a check mark, letters, and tokens of two letters."""
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    mark = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str("✓")[0][0]
    assert set(mark) <= set(alphabet)
    names = [*mark, *string.ascii_lowercase, *"ABCDEFGH", *"0123456789", "Ġ", "ab", "bc", "ca", "abc", "xy"]
    vocab = {"<end>": 0} | {name: i for i, name in enumerate(names, 1)}
    tokenizer = Tokenizer(models.BPE(vocab, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", clean_up_tokenization_spaces=False)


@pytest.fixture(scope="module")
def generators() -> dict[str, Generator]:
    tokenizer, model = letters(), tiny_model(0, 4.0, num_layers=1)
    target, draft = (LanguageModel(m, m.config, tokenizer, "letters") for m in (model, disturbed(model)))
    drafting = {"none": {}, "ngram": {}, "draft_model": {"draft": draft}}
    return {
        m: Generator(target, m, capacity=256, **drafting[m], **({} if m == "none" else {"num_speculative_tokens": 3}))
        for m in METHODS
    }


PROMPTS = random_prompts(8, 12, V, seed=3)
MIXED = dict(
    max_new_tokens=[20, 7, 25, 12, 30, 9, 16, 22], temperature=[0, 1, 0.7, 1.3, 0, 1, 0.5, 2], top_k=[0, 0, 5, 0, 0, 9, 0, 20],
    top_p=[1, 0.9, 1, 0.8, 1, 1, 0.95, 1], min_p=[0, 0, 0.1, 0, 0, 0.05, 0, 0], repetition_penalty=[1, 1.2, 1, 1.5, 1.3, 1, 0.8, 1],
    presence_penalty=[0, 0.5, 0, 0, 1, 0, -0.3, 0], frequency_penalty=[0, 0, 0.4, 0, 0, 0.2, 0, -0.1], min_new_tokens=[0, 3, 0, 5, 0, 0, 8, 0],
    seed=list(range(8)), logit_bias=[None, {5: 3.0}, None, {7: -np.inf, 9: 1.0}, None, None, {0: 4.0}, None],
    suppressed_tokens=[None, [3, 4], None, None, [10], None, None, [1, 2, 3]], stop_token_ids=[None, None, [40], None, [41, 42, 43], None, None, None],
    stop=[None, ["bc", "ab"], ["gh", "ca"], ["q", "zz"], None, ["c1"], None, ["e"]],
    regex=[None, r"[b-h]{2,30}", r"[a-h]{3,30}", None, None, r"(ab|[x-z])+", None, None], logprobs=[None, 1, 2, None, 20, None, 1, 0],
)  # fmt: skip
ROWS = 64
LAST = dict(max_new_tokens=1, regex="a+", stop=["~"], logprobs=20)


def in_batch(generator: Generator, prompts: list[list[int]], n: int = 1, **options) -> list:
    """Results of a batch of ROWS rows.

    The last prompts have the longest prompt and every option that needs a program of its own, so that
    all batches share a program. Their results are left out.
    """
    more = ROWS // n - len(prompts)
    fields = {field.name: field.default for field in dataclasses.fields(Options)}
    rows = lambda name: (
        options[name] if isinstance(options.get(name), list) else [options.get(name, fields[name])] * len(prompts)
    )
    filled = {name: rows(name) + [LAST.get(name, fields[name])] * more for name in {**options, **LAST}}
    return generator(prompts + [[5] * 20] * more, n=n, **filled)[: len(prompts) * n]


def same(a, b) -> bool:
    """Equal results, log-probabilities up to rounding, figures of cost aside."""
    plain = ("text", "token_ids", "finish_reason", "stop_reason")
    close = (a.logprobs is None) == (b.logprobs is None) and (
        a.logprobs is None or np.allclose(a.logprobs, b.logprobs, atol=1e-4)
    )
    return all(getattr(a, name) == getattr(b, name) for name in plain) and close


def test_a_seed_gives_plain_texts_where_drafts_are_chosen(generators):
    plain, drafted = (in_batch(generators[method], PROMPTS, **MIXED) for method in ("none", "ngram"))
    assert all(map(same, plain, drafted))
    assert sum(result.stats.accepted for result in drafted) > 0


@pytest.mark.parametrize(
    "method", [pytest.param(name, marks=() if name == "draft_model" else pytest.mark.slow) for name in METHODS]
)
def test_a_row_is_the_same_alone_anywhere_in_a_batch_and_streamed(method, generators):
    generator = generators[method]
    together = in_batch(generator, PROMPTS, **MIXED)
    order = [3, 0, 7, 1, 5, 2, 6, 4]
    shuffled = in_batch(
        generator, [PROMPTS[i] for i in order], **{name: [values[i] for i in order] for name, values in MIXED.items()}
    )
    assert all(same(shuffled[place], together[i]) for place, i in enumerate(order))
    assert not any(result.stats.lossy for result in together)
    for i in (1, 2):  # stop strings, a constraint and log-probabilities, with a bias or penalties
        prompt = PROMPTS[i]
        alone = {name: values[i] for name, values in MIXED.items()}
        assert same(generator(prompt, **alone), together[i]), i
        pieces, result = streamed(generator, prompt, rounds=1 + i % 3, **alone)
        assert same(result, together[i]) and "".join(pieces) == together[i].text, i


@pytest.mark.parametrize("method", [pytest.param("none", marks=pytest.mark.slow), "ngram"])
def test_samples_are_those_of_any_number_and_the_first_is_that_of_the_seed(method, generators):
    options = dict(temperature=2.0, max_new_tokens=12, seed=[7, 8])
    alone, two, four = (in_batch(generators[method], PROMPTS[:2], n, **options) for n in (1, 2, 4))
    assert same(alone[0], two[0]) and same(alone[1], two[2])
    for b in range(2):
        assert all(map(same, two[2 * b : 2 * b + 2], four[4 * b : 4 * b + 2]))
        assert len({tuple(result.token_ids) for result in four[4 * b : 4 * b + 4]}) == 4


def streamed(generator, prompt, **options):
    stream, pieces = generator.stream(prompt, **options), []
    while True:
        try:
            pieces.append(next(stream))
        except StopIteration as end:
            return pieces, end.value


GREEDY_OPTIONS = [
    dict(),
    dict(repetition_penalty=1.4),
    dict(presence_penalty=1.0, frequency_penalty=0.5),
    dict(logit_bias={5: 2.0, 6: -np.inf}, suppressed_tokens=[10, 11]),
    dict(allowed_tokens=list(range(4, 30))),
    dict(logit_bias={0: 6.0}, min_new_tokens=9),
    dict(stop=["b", "7"], stop_token_ids=[20]),
    dict(regex=r"([a-m]{2}[0-9])+✓"),
    dict(choices=["abcabc", "xyz", "hello"]),
    dict(
        repetition_penalty=1.2,
        frequency_penalty=0.2,
        logit_bias={7: 1.0},
        min_new_tokens=4,
        stop=["ab"],
        regex=r"[a-z0-9]{4,40}",
    ),
]


def mixed(rows: list[dict], each: int) -> dict:
    """Options for a batch with ``each`` rows of every one of ``rows``; what a row does not name is at its default."""
    fields = {field.name: field.default for field in dataclasses.fields(Options)}
    names = {name for row in rows for name in row}
    return {name: [row.get(name, fields[name]) for row in rows for _ in range(each)] for name in names}


def test_greedy_texts_are_plain_ones_under_every_option(generators):
    each = 6
    prompts = random_prompts(each, 20, V, seed=5) * len(GREEDY_OPTIONS)
    options = mixed(GREEDY_OPTIONS, each)
    plain = in_batch(generators["none"], prompts, max_new_tokens=40, **options)
    for method in METHODS[1:]:
        results = in_batch(generators[method], prompts, max_new_tokens=40, **options)
        assert [i for i, pair in enumerate(zip(results, plain)) if not same(*pair)] == [], method
    for row in range(1, len(GREEDY_OPTIONS)):
        part = plain[row * each : (row + 1) * each]
        assert any(a.token_ids != b.token_ids for a, b in zip(plain[:each], part)), f"{GREEDY_OPTIONS[row]} did nothing"


@pytest.mark.parametrize("method", METHODS)
def test_output_matches_the_expression_even_where_the_limit_cuts(method, generators):
    each, regexes = 16, [r"[a-m]{2,9}", r"(ab|c[0-9])+✓", r"x*y{3}"]
    options = mixed([dict(regex=regex) for regex in regexes], each)
    limits = [5 + i for i in range(each)] * len(regexes)
    prompts = random_prompts(each * len(regexes), 20, V, seed=6)
    seeds = list(range(len(prompts)))
    results = in_batch(generators[method], prompts, temperature=1.5, seed=seeds, max_new_tokens=limits, **options)
    for result, regex in zip(results, options["regex"]):
        assert re.fullmatch(regex, result.text), result.text


@pytest.mark.parametrize("method", METHODS)
def test_stop_strings_cut_texts_and_tokens_where_they_are_complete(method, generators):
    """Against the same texts without stop strings, cut afterwards."""
    generator, stops = generators[method], ["ab", "ca", "q7", "m"]
    seeds, prompts = list(range(24)), random_prompts(24, 20, V, seed=7)
    strings = [None] * 24 + [stops] * 24
    results = in_batch(generator, prompts * 2, temperature=1.0, seed=seeds * 2, max_new_tokens=40, stop=strings)
    tokenizer, cut = generator.target.tokenizer, 0
    for free, stopped in zip(results[:24], results[24:]):
        texts = [
            tokenizer.decode(free.token_ids[: k + 1], skip_special_tokens=True) for k in range(len(free.token_ids))
        ]
        end = next((k for k, text in enumerate(texts) if any(s in text for s in stops)), None)
        if end is None:
            assert stopped.token_ids == free.token_ids and stopped.stop_reason is None
            continue
        cut += 1
        first = min((texts[end].find(s) + len(s), s) for s in stops if s in texts[end])[1]
        assert stopped.token_ids == free.token_ids[: end + 1]
        assert (stopped.finish_reason, stopped.stop_reason) == ("stop", first)
        assert stopped.text == texts[end][: texts[end].find(first)]
    assert cut > 5


def test_a_stream_never_shows_what_it_would_take_back(generators):
    """Every piece stands in the final text, without half a character or the beginning of a stop string."""
    generator, prompts = generators["draft_model"], [prompt[:17] for prompt in random_prompts(12, 20, V, seed=8)]
    options = dict(temperature=1.0, max_new_tokens=40, logprobs=0)
    lists = dict(stop=["abc", "xyz", "q"], logit_bias=dict.fromkeys([1, 2, 3, 50, 51, 54], 2.0))
    together = in_batch(
        generator, prompts, seed=list(range(12)), **options, **{name: [value] * 12 for name, value in lists.items()}
    )
    for i, prompt in enumerate(prompts):
        pieces, result = streamed(generator, prompt, rounds=1, seed=i, **options, **lists)
        shown = ""
        for piece in pieces:
            shown += piece
            assert result.text.startswith(shown)
        assert shown == result.text and same(result, together[i])


@pytest.mark.parametrize(
    "method", [pytest.param(name, marks=() if name == "draft_model" else pytest.mark.slow) for name in METHODS]
)
def test_logprobs_are_those_of_the_model_alone(method, generators):
    generator = generators[method]
    options = dict(
        max_new_tokens=12,
        temperature=0.7,
        repetition_penalty=1.3,
        seed=3,
        logprobs=3,
        regex="[a-zA-H0-9 ]{20,}",
        stop="~",
    )
    result = generator(PROMPTS[0], **options)
    assert len(result.logprobs) == len(result.top_logprobs) == len(result.token_ids) > 6
    for k, token in enumerate(result.token_ids):
        ids = [*result.prompt_token_ids, *result.token_ids[:k]]
        logits = logits_after(generator.target, ids, len(result.prompt_token_ids)).astype(np.float64)
        scores = logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()
        assert abs(scores[token] - result.logprobs[k]) < 1e-4
        assert np.allclose(sorted(result.top_logprobs[k].values(), reverse=True), np.sort(scores)[::-1][:3], atol=1e-4)


def test_cache_and_text_agree_after_a_stop(generators):
    generator = generators["draft_model"]
    ids = [PROMPTS[0]]
    options = dict(max_new_tokens=40, temperature=1.0, seed=2, stop=["a", "e", "i"], logprobs=0)
    decoding = generator.start(ids, **options)
    generator.session.advance(decoding)
    (result,) = results_of(decoding, generator.target, "auto")
    assert result.finish_reason == "stop"
    assert int(decoding.state.cache.length[0]) == len(ids[0]) + len(result.token_ids) - 1
    generator.session.advance(decoding, 5)
    assert int(decoding.state.cache.length[0]) == len(ids[0]) + len(result.token_ids) - 1


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (dict(repetition_penalty=0), "repetition_penalty"),
        (dict(temperature=-1), "temperature"),
        (dict(seed=-1), "seed"),
        (dict(logprobs=21), "logprobs"),
        (dict(logprobs=[1, 2]), "logprobs has 2 values for 1"),
        (dict(min_new_tokens=9, max_new_tokens=8), "min_new_tokens 9 is above max_new_tokens 8"),
        (dict(choices=["a"], min_new_tokens=2), "min_new_tokens 2 conflicts with choices"),
        (dict(choices=["abcabcabc"], max_new_tokens=2), "too few for choices"),
        (dict(choices=["a"], ignore_eos=True), "ignore_eos"),
        (dict(choices=["a"], suppressed_tokens=[0]), "needs the end-of-text token"),
        (dict(regex="(["), "cannot be read"),
        (dict(regex="é+"), "cannot match"),
        (dict(regex="a", choices=["a"]), "regex and choices"),
        (dict(json_schema={"not": {"type": "integer"}}), 'json_schema cannot be used: Unimplemented keys: ["not"]'),
        (dict(grammar="start: a"), "grammar cannot be used"),
        (
            dict(json_schema={"type": "array", "items": {"type": "integer"}, "maxItems": 2}),
            "cannot match over this vocabulary",
        ),  # no brackets
        (dict(allowed_tokens=[]), "allowed_tokens is empty"),
        (dict(allowed_tokens=[3], suppressed_tokens=[3]), "rule out every token"),
        (dict(suppressed_tokens=[V]), "suppressed_tokens holds a token outside"),
        (dict(stop_token_ids=[-1]), "stop_token_ids holds a token outside"),
        (dict(logit_bias={V: 1.0}), "logit_bias holds a token outside"),
        (dict(logit_bias={1: float("nan")}), "not finite"),
        (dict(logit_bias=3), "logit_bias must be a mapping from token ids to numbers"),
        (dict(stop=""), "stop string is empty"),
        (dict(stop=[1]), "stop must be a string or a list of strings"),
        (dict(temprature=1), "did you mean temperature"),
    ],
)
def test_bad_options_are_named_before_anything_is_compiled(options, named, generators):
    fresh = Generator(generators["none"].target)
    with pytest.raises(RequestError, match=re.escape(named)) as error:
        fresh([5, 6, 7], **options)
    assert "\n" not in str(error.value) and not fresh.session._compiled


@pytest.mark.parametrize(
    ("processor", "named"),
    [
        (lambda logits, context: logits[..., :-1], "must keep shape and dtype"),
        (lambda logits, context: logits.astype(jnp.bfloat16), "must keep shape and dtype"),
        (lambda logits: logits, "does not take"),
    ],
)
def test_bad_processors_are_named(processor, named, generators):
    with pytest.raises(RequestError, match=named):
        Generator(generators["none"].target, processors=[processor])


@pytest.mark.parametrize("method", ["none", pytest.param("ngram", marks=pytest.mark.slow)])
def test_options_that_leave_no_token_stop_with_one_line(method, generators):
    target = generators["none"].target
    nothing = lambda logits, context: jnp.where(context.generated[..., None] >= 3, -jnp.inf, logits)
    with pytest.raises(NumericsError, match="no token is possible for prompt 0"):
        Generator(target, method, processors=[nothing], capacity=256)([5, 6, 7], max_new_tokens=9, ignore_eos=True)


@pytest.mark.slow
def test_typical_acceptance_says_that_it_is_lossy(generators):
    lossy = Generator(generators["ngram"].target, "ngram", rule="typical", capacity=256)
    results = lossy(PROMPTS[:2], temperature=[1.0, 0.0], max_new_tokens=5)
    assert [r.stats.lossy for r in results] == [True, False]


def test_scalars_and_arrays_of_jax_are_numbers():
    target = language_model(tiny_model(num_layers=1))
    given = dict(
        max_new_tokens=jnp.int32(3), top_k=jnp.int32(-1), ignore_eos=jnp.bool_(True), logit_bias={5: jnp.float32(2)},
        stop_token_ids=[jnp.int32(3)], allowed_tokens=jnp.array([3, 5]), num_speculative_tokens=jnp.int32(4),
    )  # fmt: skip
    alike = dict(
        max_new_tokens=3, top_k=0, ignore_eos=True, logit_bias={5: 2.0}, stop_token_ids=[3], allowed_tokens=[3, 5],
        num_speculative_tokens=4,
    )  # fmt: skip
    results = [generate(target, [5, 6], "ngram", **options) for options in (given, alike)]
    assert results[0].token_ids == results[1].token_ids and len(target.generators) == 1
