"""The whole loop, prefill to last token, against every sequence that the target could say and its probability."""

import dataclasses
import itertools
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import TINY, p_value, tiny_model, warped

from specjax import DraftModel, Ngram, Plain, decode
from specjax.sampling import sampling_params
from specjax.training.losses import scores
from specjax.verify import RULES

V, LENGTH, DRAFTS, CAPACITY = 5, 3, 2, 12
ROWS = 12_500  # of each case, in each call
UNLIKELY = 1e-4  # a lossless loop gives a smaller p-value in one of 10,000 runs; the seeds are fixed

pytestmark = pytest.mark.slow


@dataclasses.dataclass(frozen=True)
class Case:
    """Options, a prompt and a token that ends a row."""

    prompt: tuple[int, ...] = (1, 2, 1)  # a repetition, for n-grams
    stop: int = -1
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0


CASES = {
    "default": Case(),
    "temperature": Case(temperature=0.7),
    "top_k": Case(top_k=2),
    "top_p": Case(top_p=0.7),
    "min_p": Case(min_p=0.3),
    "together": Case(temperature=0.8, top_k=4, top_p=0.9, min_p=0.1),
    "stop": Case(stop=3),
    "one token": Case(prompt=(4,), temperature=1.2, top_p=0.95),
}
CONFIG = TINY.replace(
    vocab_size=V, hidden_size=16, intermediate_size=16, num_layers=1, num_heads=2, num_kv_heads=1, max_position_embeddings=CAPACITY
)


@cache
def model(seed: int):
    return tiny_model(seed, sharpness=15, config=CONFIG)


prefill = jax.jit(decode.prefill, static_argnames=("drafter", "chunk", "dtype"))
run = jax.jit(decode.run, static_argnames=("drafter", "rule"))
score = jax.jit(scores)


def ended(sequences: np.ndarray, stop: int) -> np.ndarray:
    """The sequences [n, LENGTH] with 0 for all that follows a stop token."""
    stopped = sequences == stop
    return np.where(np.cumsum(stopped, 1) - stopped > 0, 0, sequences)


def code(sequences: np.ndarray) -> np.ndarray:
    return np.ravel_multi_index(sequences.T, (V,) * LENGTH)


@cache
def law(case: Case) -> np.ndarray:
    """Probability of each continuation, without a cache or a loop: the target scores all of them at once."""
    sequences = np.array(list(itertools.product(range(V), repeat=LENGTH)))
    texts = np.concatenate([np.tile(case.prompt, (len(sequences), 1)), sequences], 1)
    logits = np.asarray(score(model(0), jnp.asarray(texts, jnp.int32)))[:, len(case.prompt) - 1 : -1]
    options = {name: getattr(case, name) for name in ("temperature", "top_k", "top_p", "min_p")}
    p = np.apply_along_axis(warped, -1, logits, **options)
    p = np.take_along_axis(p, sequences[..., None], -1)[..., 0].prod(1)
    return np.bincount(code(ended(sequences, case.stop)), weights=p, minlength=V**LENGTH)


def start(draft, drafter, seed: int) -> decode.DecodeState:
    """All cases in one batch, ``ROWS`` of each."""
    each = lambda values: np.repeat(np.array(values), ROWS, axis=0)
    cases = list(CASES.values())
    tokens = each([case.prompt + (0,) * (CAPACITY - len(case.prompt)) for case in cases])
    lengths = each([len(case.prompt) for case in cases])
    options = {name: each([getattr(case, name) for case in cases]) for name in ("temperature", "top_k", "top_p", "min_p")}
    arrays = (
        jnp.asarray(tokens, jnp.int32),
        jnp.asarray(lengths, jnp.int32),
        sampling_params(len(tokens), **options),
        jax.random.split(jax.random.key(seed), len(tokens)),
        jnp.asarray(lengths + LENGTH, jnp.int32),
        jnp.asarray(each([case.stop for case in cases])[:, None], jnp.int32),
    )
    return prefill(model(0), draft, *arrays, drafter=drafter, chunk=4, dtype=jnp.float32)


def finish(draft, state, drafter, rule: str, until: int = 99) -> decode.DecodeState:
    return run(model(0), draft, state, jnp.int32(until), drafter=drafter, rule=RULES[rule])


def observed(state: decode.DecodeState) -> dict[str, np.ndarray]:
    """How often each continuation came out, by case."""
    tokens, lengths, done = map(np.asarray, (state.tokens, state.cache.length, state.done))
    assert done.all()
    counts = {}
    for i, (name, case) in enumerate(CASES.items()):
        rows, prompt = slice(i * ROWS, (i + 1) * ROWS), len(case.prompt)
        new = tokens[rows, prompt : prompt + LENGTH]
        emitted = np.arange(LENGTH) < (lengths[rows] + 1 - prompt)[:, None]
        counts[name] = np.bincount(code(np.where(emitted, new, 0)), minlength=V**LENGTH)
    return counts


def p_values(counts: dict[str, np.ndarray]) -> dict[str, float]:
    """Of each case, and of all at once."""
    laws = {name: law(case) for name, case in CASES.items()}
    pooled = p_value(np.concatenate([*counts.values()]), np.concatenate([*laws.values()]))
    return {name: p_value(counts[name], laws[name]) for name in CASES} | {"pooled": pooled}


@pytest.mark.parametrize(
    ("drafter", "rule", "seed", "calls"),
    [
        pytest.param(Plain(), "sample_and_walk", 0, 3, id="plain"),
        pytest.param(Ngram(DRAFTS), "sample_and_walk", 0, 3, id="ngram"),
        pytest.param(DraftModel(DRAFTS), "rejection", 1, 3, id="rejection"),
        pytest.param(DraftModel(DRAFTS), "block", 1, 3, id="block"),
        pytest.param(DraftModel(DRAFTS), "rejection", 0, 1, id="rejection-the target itself"),
        pytest.param(DraftModel(DRAFTS), "block", 0, 1, id="block-the target itself"),
    ],
)
def test_sequences_have_the_targets_law(drafter, rule, seed, calls):
    counts, rates = [], []
    for call in range(calls):
        state = finish(model(seed), start(model(seed), drafter, call), drafter, rule)
        counts.append(observed(state))
        rates.append(float(state.counters.accepted_at.sum() / jnp.maximum(state.counters.drafted.sum(), 1)))
    if drafter.depth and seed == 0 and drafter.sampled:  # only a stop token keeps the target from agreeing with itself
        assert np.mean(rates) > 0.99
    elif drafter.depth:  # both sides of every branch are taken
        assert 0.1 < np.mean(rates) < 0.9
    values = p_values({name: sum(c[name] for c in counts) for name in CASES})
    assert min(values.values()) > UNLIKELY, values


@dataclasses.dataclass(frozen=True)
class Unwarped(DraftModel):
    """Reports the q of twice the temperature that its tokens are drawn at."""

    def draft(self, target, draft, state, key):
        tree, pending = super().draft(target, draft, state, key)
        q = jnp.sqrt(tree.q)
        return tree.replace(q=q / jnp.maximum(q.sum(-1, keepdims=True), 1e-9)), pending


def test_a_q_that_was_not_drawn_from_is_noticed():
    drafter = Unwarped(DRAFTS)
    state = finish(model(1), start(model(1), DraftModel(DRAFTS), 0), drafter, "rejection")
    values = p_values(observed(state))
    assert values["pooled"] < 1e-20 and values["default"] < UNLIKELY


def test_the_same_key_at_every_step_is_noticed():
    state = start(model(0), Plain(), 0)
    for _ in range(LENGTH):
        state = finish(model(0), state.replace(step=jnp.int32(0)), Plain(), "sample_and_walk", until=1)
    values = p_values(observed(state))
    assert values["pooled"] < 1e-20 and values["default"] < UNLIKELY
