"""Suffix decoding on the device against a suffix tree of nested dictionaries."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest
from support.models import language_model, random_prompts, tiny_model

from specjax import Generator, RequestError
from specjax.drafters import Suffix
from specjax.drafters.parts.text_store import append, empty

CAPACITY, ROWS, V = 48, 300, 9


def suffix_tree(texts: list[list[int]], depth: int) -> dict:
    """Every run of at most ``depth`` tokens of the texts: {token: [count, newest place, children]}."""
    root, before = {}, 0
    for text in texts:
        for start in range(len(text)):
            children = root
            for place in range(start, min(start + depth, len(text))):
                node = children.setdefault(text[place], [0, 0, {}])
                node[0], node[1], children = node[0] + 1, before + start, node[2]
        before += len(text) + 1
    return root


def speculate(tree: dict, text: list[int], most: int, longest: int, least: float) -> tuple[list[int], float]:
    """The paper's procedure: the most frequent continuation of every match length, and of these the
    highest score.
    """
    best, best_score = [], 0.0
    for size in range(1, min(longest, len(text)) + 1):
        children, node = tree, None
        for token in text[-size:]:
            node = children.get(token, [0, 0, {}])
            children = node[2]
        p, score, drafted = 1.0, 0.0, []
        while node[2] and len(drafted) < min(size, most):
            token, child = max(node[2].items(), key=lambda item: (item[1][0], item[1][1]))
            p *= child[0] / node[0]
            if p < least:
                break
            drafted.append(token)
            score, node = score + p, child
        if drafted and score >= best_score - 1e-6:
            best, best_score = drafted, max(score, best_score)
    return best, best_score


def propose(options: tuple, tokens, last, memory=None):
    """For each row the valid drafted tokens."""
    state = SimpleNamespace(tokens=tokens, cache=SimpleNamespace(length=last))
    target = SimpleNamespace(config=SimpleNamespace(vocab_size=V))
    tree = jax.jit(lambda memory: Suffix(*options).propose(target, memory, state, None)[0])(memory)
    valid = np.asarray(tree.valid[:, 1:])
    assert np.array_equal(valid, np.cumprod(valid, 1))
    return [tokens[ok].tolist() for tokens, ok in zip(np.asarray(tree.tokens[:, 1:]), valid)]


def rows(seed: int, count: int, size: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (rng.random((count, size)) * rng.choice([2, 3, V], (count, 1))).astype(np.int32)


@pytest.mark.parametrize(
    "options",
    [
        (4, 5, 0.1),
        (3, 8, 0.0),
        *(pytest.param(options, marks=pytest.mark.slow) for options in ((6, 3, 0.3), (1, 1, 0.5))),
    ],
)
def test_continuations_equal_those_of_a_suffix_tree(options):
    tokens, last = (
        rows(options[0], ROWS, CAPACITY),
        np.random.default_rng(0).integers(0, CAPACITY, ROWS).astype(np.int32),
    )
    texts = [row[: end + 1].tolist() for row, end in zip(tokens, last)]
    wanted = [speculate(suffix_tree([text], 20), text, *options)[0] for text in texts]
    assert propose(options, tokens, last) == wanted
    assert ROWS / 4 < sum(map(bool, wanted)) < ROWS


def test_continuations_come_from_the_store_where_its_score_is_higher():
    """A run has few places in the store, so that the drafter counts them all.

    The oracle is a suffix tree.
    """
    options, stored = (4, 5, 0.1), [row.tolist() for row in rows(5, 8, 7)]
    memory = append(append(empty(256), stored[:5]), stored[5:])
    tokens, last = rows(6, ROWS, 14), np.random.default_rng(1).integers(0, 14, ROWS).astype(np.int32)
    tree, changed = suffix_tree(stored, 20), 0
    for row, end, found in zip(tokens, last, propose(options, tokens, last, memory)):
        text = row[: end + 1].tolist()
        (own, own_score), (earlier, its_score) = (speculate(t, text, *options) for t in (suffix_tree([text], 20), tree))
        assert found == (earlier if its_score > own_score + 1e-6 else own)
        changed += its_score > own_score + 1e-6
    assert changed > ROWS / 4


def test_a_full_store_drops_the_oldest_texts():
    memory = empty(40)
    for i in range(30):
        memory = append(memory, [[i, i + 1, i]])
        assert memory.tokens.shape == memory.order.shape == (40,)
    assert memory.tokens.tolist() == [t for i in range(20, 30) for t in (i, i + 1, i, -1)]
    places = memory.order.tolist()
    assert sorted(places) == list(range(40))
    suffixes = [memory.tokens[at : at + 8].tolist() for at in places]
    assert suffixes == sorted(suffixes)


def test_earlier_requests_speed_up_and_leave_the_text_as_it_is():
    target = language_model(tiny_model(0, 4.0, num_layers=1))
    plain, drafting = Generator(target, "none"), Generator(target, "suffix", store_tokens=512)
    options = dict(max_new_tokens=24, temperature=[0.0, 1.0], seed=[1, 2], ignore_eos=True)
    prompts = random_prompts(2, 9, seed=4)
    wanted = [result.token_ids for result in plain(prompts, **options)]
    first, second = (drafting(prompts, **options) for _ in range(2))
    assert wanted == [result.token_ids for result in first] == [result.token_ids for result in second]
    assert sum(r.stats.target_calls for r in second) < sum(r.stats.target_calls for r in first) / 2


def test_options_out_of_range_are_named():
    for options in (dict(max_match=0), dict(min_token_prob=1.5), dict(num_speculative_tokens=0), dict(store_tokens=-1)):
        with pytest.raises(RequestError, match=next(iter(options))):
            Suffix(**options)
