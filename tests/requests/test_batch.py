"""Options and the arrays of a batch, without a model: what reaches the device, for prompts and their samples, and what is refused."""

import types

import jax
import numpy as np
import pytest
from support.models import TINY, byte_tokenizer

from specjax.core.sampling import NUMBERS, sampling_params
from specjax.errors import RequestError
from specjax.requests.batch import build_batch
from specjax.requests.options import Options

V = TINY.vocab_size
TARGET = types.SimpleNamespace(config=TINY, tokenizer=byte_tokenizer(V))


def build(lengths=(5, 7), target=TARGET, **options):
    return build_batch(Options.of(options), [[1] * length for length in lengths], target)


def test_options_of_numpy_are_those_of_python():
    plain = dict(max_new_tokens=9, top_k=3, seed=[4, 5], logit_bias={5: 2.0}, stop_token_ids=[7], allowed_tokens=[0, 5, 7], logprobs=2,
                 ignore_eos=True)  # fmt: skip
    numpy = dict(max_new_tokens=np.int64(9), top_k=np.int32(3), seed=np.array([4, 5]), logit_bias={np.int64(5): np.float32(2)},
                 stop_token_ids=np.array([7]), allowed_tokens=[np.int64(0), np.int16(5), 7], logprobs=np.int64(2), ignore_eos=np.True_)  # fmt: skip
    one, other = build(**plain), build(**numpy)
    assert jax.tree.structure(one.requests.sampling) == jax.tree.structure(other.requests.sampling)
    for a, b in zip(
        jax.tree.leaves((one.requests.sampling, one.requests.limit, one.requests.stop_ids)),
        jax.tree.leaves((other.requests.sampling, other.requests.limit, other.requests.stop_ids)),
    ):
        np.testing.assert_array_equal(a, b)
        assert a.dtype == b.dtype
    np.testing.assert_array_equal(jax.random.key_data(one.requests.keys), jax.random.key_data(other.requests.keys))
    assert one.requests.stop_ids[0].tolist() == [7] + [-1] * 7 and one.requests.limit.tolist() == [14, 16]
    assert (
        np.flatnonzero(np.asarray(one.requests.sampling.bias)[0] > -np.inf).tolist() == [0, 5, 7]
        and one.requests.sampling.bias[0, 5] == 2
    )


def test_the_numbers_of_sampling_have_the_defaults_of_the_options():
    assert {name: number["default"] for name, number in NUMBERS.items()} == {
        name: getattr(Options(), name) for name in NUMBERS
    }
    with pytest.raises(RequestError, match="sampling option 'top_q' is unknown; use temperature, top_k"):
        sampling_params(2, top_q=0.5)


SETTINGS = {
    "x64": lambda: jax.enable_x64(True),
    "rank promotion": lambda: jax.numpy_rank_promotion("raise"),
    "transfer guard": lambda: jax.transfer_guard("disallow"),
    "rbg": lambda: jax.default_prng_impl("rbg"),
    "no jit": jax.disable_jit,
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_batch_is_the_same_under_every_setting_of_jax(setting):
    options = dict(n=2, temperature=[0.5, 2.0], regex=["A+", None], stop=[["A"], None], logit_bias={5: 1.0})
    plain = build(**options)
    with SETTINGS[setting]():
        batch = build(**options)
    arrays = lambda b: (
        b.requests.sampling,
        b.requests.stops,
        b.requests.stop_start,
        b.requests.limit,
        b.requests.stop_ids,
        jax.random.key_data(b.requests.keys),
    )
    for one, other in zip(jax.tree.leaves(arrays(plain)), jax.tree.leaves(arrays(batch)), strict=True):
        np.testing.assert_array_equal(one, other)
        assert one.dtype == other.dtype


def test_samples_repeat_the_options_of_their_prompts():
    options = dict(temperature=[0.5, 2.0], seed=[3, 9], stop=[["A"], None], logprobs=[None, 2], stop_token_ids=[None, [7]],
                   regex=["A+", None], max_new_tokens=[4, 8], suppressed_tokens=[[9], []])  # fmt: skip
    one, three = build(**options), build(n=3, **options)
    assert (one.samples, three.samples) == (1, 3)
    place = [0, 0, 0, 1, 1, 1]
    for name in ("prompts", "logprobs", "stop_strings", "extra_stops"):
        assert getattr(three, name) == [getattr(one, name)[b] for b in place]
    for name in ("lengths", "limit", "stop_ids", "stop_start", "seeded"):
        np.testing.assert_array_equal(getattr(three.requests, name), getattr(one.requests, name)[place])
    for name in ("temperature", "top_p", "bias", "start"):
        np.testing.assert_array_equal(
            getattr(three.requests.sampling, name), np.asarray(getattr(one.requests.sampling, name))[place]
        )
    np.testing.assert_array_equal(three.requests.sampling.table.next, one.requests.sampling.table.next)
    keys = np.asarray(jax.random.key_data(three.requests.keys))
    np.testing.assert_array_equal(keys[::3], jax.random.key_data(one.requests.keys))
    assert len(np.unique(keys, axis=0)) == 6


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (dict(n=0), "n must be a whole number, at least 1 and at most 1024, not 0"),
        (dict(n=1025), "at most 1024, not 1025"),
        (dict(n=[1, 2]), "n must be one whole number"),
        (dict(n=True), "n must be a whole number"),
        (dict(n=2.0), "n must be a whole number"),
        (dict(num_return_sequences=0), "n must be"),
        (dict(seed=-1), "seed must be a whole number, at least 0 and at most 4294967295, not -1"),
        (dict(seed=2**32), "at most 4294967295"),
        (dict(max_new_tokens=2**31), "at least 1 and at most 2147483647, not 2147483648"),
        (dict(temperature=float("nan")), "temperature must be a number"),
        (dict(temperature=float("inf")), "temperature must be a number"),
        (dict(top_p=1.5), "top_p must be a number, above 0 and at most 1, not 1.5"),
        (dict(top_k=[1, 2, 3]), "top_k has 3 values for 2 prompts"),
        (dict(choices="abc"), "choices must be a list of strings, not one string; use choices=['abc']"),
        (dict(choices=b"abc"), "choices must be a list of strings"),
        (dict(choices=["a"] * 10_001), "MOST_CHOICES"),
        (dict(choices=["a" * 200_000]), "LONGEST_PATTERN"),
        (dict(regex=7), "regex must be a string"),
        (dict(regex=["a", 7]), "regex must be a string"),
        (dict(regex=["a"] * 3), "regex has 3 values for 2 prompts"),
        (dict(json_schema=[1]), "json_schema must be a dict or JSON text"),
        (dict(json_schema={"const": {1, 2}}), "json_schema cannot be written as JSON"),
        (dict(stop=["A"] * 65), "MOST_STOP_STRINGS"),
        (dict(stop="A" * 1025), "MOST_STOP_BYTES"),
        (dict(stop=b"A"), "stop must be a string or a list of strings"),
        (dict(stop_token_ids=b"A"), "stop_token_ids must be a list of token ids"),
        (dict(stop_token_ids=[True]), "stop_token_ids must be a list of token ids"),
        (dict(stop_token_ids=[1.0]), "stop_token_ids must be a list of token ids"),
        (dict(stop_token_ids=[V]), f"stop_token_ids holds a token outside the vocabulary of {V}: {V}"),
        (dict(stop_token_ids=[10**30]), "stop_token_ids holds a token outside"),
        (dict(allowed_tokens=7), "allowed_tokens must be a list of token ids"),
        (dict(allowed_tokens=[-1]), "allowed_tokens holds a token outside"),
        (dict(policy_logprobs=1), "policy_logprobs must be true or false"),
        (dict(logprobs=True), "logprobs must be a whole number from 0 to 20"),
        (dict(logprobs=1.0), "logprobs must be a whole number from 0 to 20"),
        (dict(logprobs=21), "logprobs must be a whole number, at least 0 and at most 20, not 21"),
        (dict(ignore_eos=1), "ignore_eos must be true or false"),
        (dict(ignore_eos="yes"), "ignore_eos must be true or false"),
        (dict(logit_bias={1.5: 1.0}), "1.5 is no token id"),
        (dict(logit_bias={True: 1.0}), "True is no token id"),
        (dict(logit_bias={"x": 1.0}), "'x' is no token id"),
        (dict(logit_bias={1: "2"}), "must map token ids to numbers, not '2'"),
        (dict(logit_bias={1: 10**400}), "not finite"),
        (dict(logit_bias={10**30: 1}), "outside the vocabulary"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_bad_values_are_named_on_one_line(options, named):
    with pytest.raises(RequestError) as error:
        build(**options)
    assert named in str(error.value) and "\n" not in str(error.value) and len(str(error.value)) < 200


def test_too_many_prompts_and_rows():
    with pytest.raises(RequestError, match=r"5,000 prompts is above the limit of 4,096 \(MOST_PROMPTS\)"):
        build([5] * 5000)
    with pytest.raises(
        RequestError, match=r"20,000 rows .prompts times samples. is above the limit of 16,384 \(MOST_ROWS\)"
    ):
        build([5] * 20, n=1000)


def test_different_constraints_stop_at_a_limit(monkeypatch):
    monkeypatch.setattr("specjax.requests.limits.MOST_CONSTRAINTS", 3)
    assert build([5] * 6, regex=["A", "B", "C"] * 2).samples == 1
    for options in dict(regex=["A", "B", "C", "D"]), dict(stop=[["A"], ["B"], ["C"], ["D"]]):
        with pytest.raises(RequestError, match=r"above the limit of 3 \(MOST_CONSTRAINTS\)"):
            build([5] * 4, **options)


def test_end_tokens_outside_the_vocabulary_are_refused():
    target = types.SimpleNamespace(config=TINY.replace(eos_token_ids=(0, V)), tokenizer=TARGET.tokenizer)
    with pytest.raises(
        RequestError, match=f"eos_token_id of the model holds a token outside the vocabulary of {V}: {V}"
    ):
        build(target=target)


def test_biases_of_json_and_of_great_size():
    bias = np.asarray(build(logit_bias={"5": -(10**400), "6": -1e300, "7": 1}).requests.sampling.bias)[0]
    assert bias[5] == bias[6] == -np.inf and bias[7] == 1
