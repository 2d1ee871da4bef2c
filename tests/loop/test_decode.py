"""The loop: every drafter emits what plain decoding emits, and plain decoding emits the argmax of the model."""

import dataclasses
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from support.decoding import CAPACITY, CHUNK, NEW, decode_all, finish, new_tokens, start
from support.models import TINY, disturbed, language_model, random_prompts, tiny_model
from support.reference import score

from specjax import DecodeState, Generator, NumericsError
from specjax.core.tree import chain
from specjax.drafters import DraftModel, Ngram, Plain
from specjax.loop import decode
from specjax.models.config import Rope

B, DRAFTS = 40, 4
PLAIN, NGRAM, MODEL = Plain(), Ngram(DRAFTS), DraftModel(DRAFTS)


@dataclasses.dataclass
class Batch:
    """A target, a ragged batch of prompts, and their plain greedy decoding: the state, and the new tokens ``plain``."""

    target: nnx.Module
    prompts: list[list[int]]
    state: DecodeState
    plain: list[list[int]]


@cache
def batch(seed: int) -> Batch:
    """Prompts of 1 to 60 tokens, in batch 4 of up to 200. Every other prompt repeats itself."""
    longest = 200 if seed == 4 else 60
    prompts = random_prompts(B, longest, seed=seed)
    prompts = [(p[:7] * longest)[: len(p)] if b % 2 else p for b, p in enumerate(prompts)]
    prompts[0], prompts[1] = prompts[0][:1], (prompts[1] * longest)[:longest]
    target = tiny_model(seed)
    return Batch(target, prompts, *decode_all(target, None, PLAIN, prompts))


def negate(model):
    """A draft whose likeliest token is the least likely token of ``model``."""
    graph, params = nnx.split(model)
    copy = nnx.merge(graph, jax.tree.map(jnp.array, params))
    copy.head[...] = -copy.head[...]
    return copy


DRAFT_OF = {
    "similar": disturbed,
    "the target itself": lambda model: model,
    "adversarial": negate,
    "random": lambda model: tiny_model(99),
}


# The first tier decodes a batch of short prompts and one of long prompts; the second tier decodes all.
FIRST_TIER = (0, 4)
EACH_BATCH = pytest.mark.parametrize(
    "b", [pytest.param(b, marks=() if b in FIRST_TIER else pytest.mark.slow) for b in range(5)]
)


@EACH_BATCH
def test_plain_decoding_takes_the_argmax_of_a_forward_without_cache(b):
    wanted = np.asarray(score(batch(b).target, batch(b).state.tokens).argmax(-1))
    for row, (prompt, new) in enumerate(zip(batch(b).prompts, batch(b).plain)):
        assert len(new) == NEW and new == wanted[row, len(prompt) - 1 : len(prompt) - 1 + NEW].tolist()


@pytest.mark.parametrize(
    ("kind", "b"),
    [
        pytest.param(kind, b, marks=() if b == 0 or (kind, b) == ("similar", 4) else pytest.mark.slow)
        for b in range(5)
        for kind in DRAFT_OF
    ],
)
def test_a_draft_model_changes_nothing(kind, b):
    case = batch(b)
    state, new = decode_all(case.target, DRAFT_OF[kind](case.target), MODEL, case.prompts)
    assert new == case.plain
    accepted = np.asarray(state.counters.accepted_at.sum(-1))
    if kind == "the target itself":  # five tokens a round, fewer in the last
        assert np.all(accepted == NEW - NEW // (DRAFTS + 1)) and np.all(state.counters.calls == -(-NEW // (DRAFTS + 1)))
    elif kind == "adversarial":
        assert np.all(accepted == 0) and np.all(state.counters.calls == NEW)
    elif kind == "similar":
        assert 0.2 < accepted.mean() / NEW < 0.8


@EACH_BATCH
def test_ngrams_change_nothing(b):
    state, new = decode_all(batch(b).target, None, NGRAM, batch(b).prompts)
    assert new == batch(b).plain
    assert int(state.counters.accepted_at.sum()) > 10
    assert np.all(state.counters.drafted % DRAFTS == 0)


@pytest.mark.parametrize("drafter", [PLAIN, NGRAM, MODEL], ids=["plain", "ngram", "draft_model"])
def test_rows_end_with_their_stop_token_wherever_it_falls(drafter):
    """The draft is the target itself. Every draft is accepted, so that most stop tokens lie inside a path of five."""
    case, rng = batch(0), np.random.default_rng(0)
    stops = [int(rng.choice(new)) for new in case.plain]
    stops[:3] = [case.plain[0][0], case.plain[1][DRAFTS], case.plain[2][DRAFTS + 1]]
    expected = [new[: new.index(stop) + 1] for new, stop in zip(case.plain, stops)]
    state, new = decode_all(case.target, case.target if drafter is MODEL else None, drafter, case.prompts, stops=stops)
    assert new == expected
    assert {len(row) % (DRAFTS + 1) for row in new} == set(range(DRAFTS + 1))
    if drafter is MODEL:
        assert np.asarray(state.counters.calls).tolist() == [-(-len(row) // (DRAFTS + 1)) for row in new]


@pytest.mark.parametrize("drafter", [PLAIN, NGRAM, MODEL], ids=["plain", "ngram", "draft_model"])
def test_rows_end_at_their_limit(drafter):
    case = batch(1)
    lengths = np.array([len(prompt) for prompt in case.prompts])
    room = np.arange(B) % (NEW + 1)  # none at all in some rows
    state, new = decode_all(
        case.target, case.target if drafter is MODEL else None, drafter, case.prompts, limit=lengths + room
    )
    assert new == [row[:n] for row, n in zip(case.plain, room)]
    assert np.all(state.cache.length + 1 == lengths + room)


def test_caches_hold_what_a_fresh_prefill_would():
    """Where all drafts of a round were accepted, the draft has not read the last of them. It must read it later."""
    case = batch(0)
    for draft in (disturbed(case.target), case.target):
        state, _ = decode_all(case.target, draft, MODEL, case.prompts)
        texts = [row[: n + 1].tolist() for row, n in zip(np.asarray(state.tokens), np.asarray(state.cache.length))]
        fresh = start(case.target, draft, MODEL, texts)
        for ours, theirs in ((state.cache, fresh.cache), (state.drafter.cache, fresh.drafter.cache)):
            np.testing.assert_array_equal(ours.length, theirs.length)
            held = (np.arange(CAPACITY) < np.asarray(ours.length)[:, None])[:, None, :, None]
            for a, b in zip(jax.tree.leaves(ours.layers), jax.tree.leaves(theirs.layers)):
                np.testing.assert_allclose(np.where(held, a, 0), np.where(held, b, 0), rtol=1e-5, atol=1e-5)


def test_counters_are_those_of_a_recount():
    """A greedy draft is accepted as long as it predicts the text, so text and draft determine every round."""
    case = batch(2)
    draft = disturbed(case.target)
    state, new = decode_all(case.target, draft, MODEL, case.prompts)
    predicted = np.asarray(score(draft, state.tokens).argmax(-1))
    for b, (prompt, row) in enumerate(zip(case.prompts, new)):
        text, root, calls, accepted_at = prompt + row, len(prompt) - 1, 0, [0] * DRAFTS
        while root + 1 < len(text):
            kept = 0
            while kept < min(DRAFTS, len(text) - root - 1) and predicted[b, root + kept] == text[root + kept + 1]:
                accepted_at[kept] += 1
                kept += 1
            root, calls = root + kept + 1, calls + 1
        assert state.counters.calls[b] == calls and state.counters.drafted[b] == calls * DRAFTS
        assert state.counters.accepted_at[b].tolist() == accepted_at


SAMPLED = dict(temperature=0.8, top_k=20, top_p=0.95, min_p=0.01)


@pytest.mark.parametrize("drafter", [PLAIN, NGRAM, MODEL], ids=["plain", "ngram", "draft_model"])
def test_a_row_depends_on_nothing_but_itself(drafter):
    case, other = batch(0), batch(3)
    draft = disturbed(case.target) if drafter is MODEL else None
    seeds = np.arange(B)
    _, new = decode_all(case.target, draft, drafter, case.prompts, seeds=seeds, **SAMPLED)
    assert new != case.plain

    order = np.random.default_rng(0).permutation(
        B
    )  # at other places of a batch, beside other rows, some of them greedy
    own = order[: B // 2]
    prompts = [case.prompts[b] for b in own] + other.prompts[: B // 2]
    options = {
        name: [value] * (B // 2) + [value, 0.0 if name == "temperature" else value] * (B // 4)
        for name, value in SAMPLED.items()
    }
    _, beside = decode_all(
        case.target, draft, drafter, prompts, seeds=np.append(seeds[own], seeds[: B // 2] + 1000), **options
    )
    assert beside[: B // 2] == [new[b] for b in own]

    state = start(case.target, draft, drafter, case.prompts, seeds=seeds, **SAMPLED)
    for rounds in (1, 2, 4, 5, 9, 10**6):  # in pieces
        state = finish(case.target, draft, drafter, state, rounds)
    assert new_tokens(state, case.prompts) == new


@pytest.mark.parametrize("drafter", [NGRAM, MODEL], ids=["ngram", "draft_model"])
def test_greedy_rows_stay_greedy_beside_sampled_ones(drafter):
    case = batch(0)
    temperature = np.where(np.arange(B) % 2, 0.0, 1.0)
    _, new = decode_all(
        case.target,
        disturbed(case.target) if drafter is MODEL else None,
        drafter,
        case.prompts,
        temperature=temperature,
    )
    assert new[1::2] == case.plain[1::2] and new[::2] != case.plain[::2]


def test_nan_fails_the_row_that_meets_it_and_no_other():
    case, word = batch(0), 7
    graph, params = nnx.split(case.target)
    broken = nnx.merge(graph, jax.tree.map(jnp.array, params))
    broken.embed[...] = broken.embed[...].at[word].set(jnp.nan)
    state = finish(broken, None, PLAIN, start(broken, None, PLAIN, case.prompts))
    meets = [word in prompt + row[:-1] for prompt, row in zip(case.prompts, case.plain)]
    assert np.asarray(state.failed).tolist() == meets and 0 < sum(meets) < B
    whole = [(a, b) for a, b, met in zip(new_tokens(state, case.prompts), case.plain, meets) if not met]
    assert all(a == b for a, b in whole)


@pytest.mark.slow
def test_capacity_changes_nothing():
    case, rows = batch(4), 8
    prompts = case.prompts[:rows]
    assert max(map(len, prompts)) + NEW > CAPACITY // 2
    _, new = decode_all(case.target, disturbed(case.target), MODEL, prompts, capacity=1024)
    assert new == case.plain[:rows]


def test_a_prompt_read_in_pieces_is_read_whole():
    case = batch(4)
    ends = np.array([len(prompt) - 1 for prompt in case.prompts])
    assert ends.max() > 2 * CHUNK

    @jax.jit
    def next_logits(target, state):
        return decode.score(target, jax.vmap(chain)(state.root[:, None]), state).logits[:, 0]

    pieces, whole = (start(case.target, None, PLAIN, case.prompts, chunk=chunk) for chunk in (CHUNK, CAPACITY))
    without_cache = np.asarray(score(case.target, pieces.tokens))[np.arange(B), ends]
    for state in (pieces, whole):
        np.testing.assert_allclose(next_logits(case.target, state), without_cache, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("drafter", [NGRAM, MODEL], ids=["ngram", "draft_model"])
def test_windows_and_positions_that_stretch(drafter):
    """Layers that see eight tokens back, and rotary frequencies that change with the length of the text."""
    config = TINY.replace(windows=(8, None), max_position_embeddings=24, rope=Rope(rope_type="dynamic", factor=8.0))
    target = tiny_model(5, config=config)
    prompts = random_prompts(8, 40, seed=6)
    prompts[0] = prompts[0][:1]
    small = dict(capacity=128, chunk=16)
    _, plain = decode_all(target, None, PLAIN, prompts, **small)
    state, new = decode_all(target, disturbed(target) if drafter is MODEL else None, drafter, prompts, **small)
    assert new == plain and state.counters.accepted_at.sum() > 20


CONTEXT = 48


@pytest.fixture(scope="module")
def generator() -> Generator:
    """Decodes one prompt at a time, in a context of 48 tokens. Prompts of 18 to 33 tokens share its programs."""
    model = tiny_model(0)
    target = dataclasses.replace(language_model(model), config=model.config.replace(max_position_embeddings=CONTEXT))
    return Generator(target, draft=language_model(disturbed(model)), num_speculative_tokens=DRAFTS)


PROMPTS = [prompt[:18] * 2 for prompt in random_prompts(200, 60, seed=8) if len(prompt) >= 18][:6]
PROMPTS = [prompt[: 18 + 3 * i] for i, prompt in enumerate(PROMPTS)]


def with_end(generator: Generator, *eos: int):
    """The generator's target with other end-of-text tokens."""
    target = generator.target
    return dataclasses.replace(target, config=target.config.replace(eos_token_ids=eos))


@pytest.mark.slow
def test_a_prompt_alone_equals_one_in_a_batch(generator):
    model, draft = generator.target.model, generator.draft.model
    prompts = PROMPTS + random_prompts(B - len(PROMPTS), 40, seed=9)
    limit = [min(len(prompt) + NEW, CONTEXT) for prompt in prompts]
    for options in (dict(temperature=0.0), SAMPLED):
        _, new = decode_all(model, draft, MODEL, prompts, stops=0, limit=limit, seeds=np.arange(B), **options)
        for seed, (prompt, expected) in enumerate(zip(PROMPTS, new)):
            assert generator(prompt, max_new_tokens=NEW, seed=seed, **options).token_ids == expected


def test_a_stream_yields_the_same_text(generator):
    options = dict(seed=3, ignore_eos=True, max_new_tokens=NEW, **SAMPLED)
    pieces, stream = [], generator.stream(PROMPTS[0], rounds=1, **options)
    while True:
        try:
            pieces.append(next(stream))
        except StopIteration as end:
            result = end.value
            break
    once = generator(PROMPTS[0], **options)
    assert result.token_ids == once.token_ids and "".join(pieces) == once.text and len(pieces) > 1


def test_the_context_ends_a_text(generator):
    for prompt in PROMPTS:
        out = generator(prompt, max_new_tokens=1000, ignore_eos=True)
        assert out.finish_reason == "length" and len(prompt) + len(out.token_ids) == CONTEXT
    out = generator(PROMPTS[0], max_new_tokens=7, ignore_eos=True)
    assert out.finish_reason == "length" and len(out.token_ids) == 7


def test_an_end_token_stops_inside_a_block(generator, monkeypatch):
    for prompt in PROMPTS:
        full = generator(prompt, max_new_tokens=20, ignore_eos=True)
        for place in (0, 3, 8, 12):
            end = full.token_ids[place]
            monkeypatch.setattr(generator, "target", with_end(generator, end))
            out = generator(prompt, max_new_tokens=20)
            assert out.token_ids == full.token_ids[: full.token_ids.index(end) + 1] and out.finish_reason == "stop"
            assert generator(prompt, max_new_tokens=20, ignore_eos=True).token_ids == full.token_ids


def test_nan_weights_are_an_error(generator, monkeypatch):
    target = generator.target
    graph, params = nnx.split(target.model)
    broken = nnx.merge(graph, jax.tree.map(lambda x: x * jnp.nan, params))
    monkeypatch.setattr(generator.session, "target", dataclasses.replace(target, model=broken))
    with pytest.raises(NumericsError, match="NaN"):
        generator(PROMPTS[0])
