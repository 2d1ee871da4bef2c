"""Lookahead decoding against lists for the window and a dictionary in order of use for the pool.

The reference reads every text from its beginning, without cache, mask or tree. A token of the
window follows the text, then row 0 up to its column, then its column.
"""

import re
from functools import cache, partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from support.decoding import NEW, finish, new_tokens, rounds, spell_paths, start, texts
from support.models import language_model, p_value, random_prompts, tiny_model
from support.program import MOVES, Program
from support.reference import logits_after, score

from specjax import Generator, RequestError, make_mesh
from specjax.core.tree import Tree
from specjax.core.verdict import Verdict
from specjax.drafters import Lookahead
from specjax.drafters.lookahead import LookaheadState, _insert, _trie
from specjax.rules.walks import _walk, argmax_walk, sample_and_walk
from specjax.tools.plan import hlo

TARGET = tiny_model(0, 8.0)
PROMPTS = [[7], [5, 6, 5, 7, 5, 6, 8, 5], *random_prompts(2, 30, vocab_size=12, seed=4)]


@cache
def said(text: tuple[int, ...]) -> int:
    """The target's token after a text."""
    return int(logits_after(TARGET, list(text)).argmax())


class Reference:
    """One row of a batch.

    ``rows`` is the window without the root, the oldest row first; it grows by a row a round.
    """

    def __init__(self, drafter: Lookahead, prompt: list[int], row: list[int]):
        self.W, self.N, self.G = drafter.window, drafter.ngram_size, drafter.guesses
        self.size, self.from_text = drafter.pool_guesses or drafter.guesses, drafter.pool_from_prompt
        self.text, self.rows, self.pool = list(prompt), [row], {}
        assert len(row) == self.W + self.N - 3 and set(row) <= set(prompt)
        if self.from_text:
            for i in range(len(prompt) - self.N + 1):
                self.use(prompt[i : i + self.N])

    def use(self, ngram: list[int]):
        """Moves the n-gram to the end of its first token's list.

        A full list drops the n-gram that was not used for longest.
        """
        known, following = self.pool.setdefault(ngram[0], []), tuple(ngram[1:])
        entry = next((entry for entry in known if entry[0] == following), (following, 0))
        known[:] = [*(other for other in known if other != entry), (following, entry[1] + 1)]
        del known[: -self.size]

    def guesses(self) -> list[tuple[int, ...]]:
        known = self.pool.get(self.text[-1], [])
        best = sorted(range(len(known)), key=lambda i: (known[i][1], i))[-self.G :]
        return [known[i][0] for i in best]

    def round(self):
        text, rows, guesses = tuple(self.text), self.rows, self.guesses()
        emitted = [said(text)]
        while any(guess[: len(emitted)] == tuple(emitted) for guess in guesses):
            emitted.append(said(text + tuple(emitted)))

        first = [text[-1], *rows[0]]  # row 0 begins with the root
        columns = len(first)
        below = [[row[c] for row in rows[1:]] for c in range(columns)]
        new = [said(text + tuple(first[1 : c + 1]) + tuple(below[c])) for c in range(columns)]
        if len(rows) < self.N - 1:
            self.rows = [first[2:], *(row[1:] for row in rows[1:]), new[1:]]
        else:
            assert columns == self.W
            for c in range(self.W):
                self.use([first[c], *below[c], new[c]])
            self.rows = [*rows[1:], new]
            self.rows[0] = self.rows[0][1:]
        for token in emitted:
            self.text.append(token)
            if self.from_text and len(self.text) >= self.N:
                self.use(self.text[-self.N :])


def rows_of(drafter: Lookahead, kept: LookaheadState, b: int) -> list[list[int]]:
    """The window of row b in the form of the reference."""
    filled = int(kept.filled[b])
    rows = [kept.window[b, r, : drafter.columns - filled].tolist() for r in range(filled + 1)]
    return [rows[0][1:], *rows[1:]]


def pool_of(pool) -> dict:
    """The pool [V, P, N] of a row in the form of the reference."""
    listed = {
        token: [(tuple(entry[:-1]), entry[-1]) for entry in known if entry[-1]]
        for token, known in enumerate(np.asarray(pool).tolist())
    }
    return {token: known for token, known in listed.items() if known}


def test_rounds_equal_algorithm_2_over_lists():
    """The window is so narrow that it has more tokens while it fills than afterwards."""
    drafter = Lookahead(window=2, ngram_size=5, guesses=3, pool_guesses=4, pool_from_prompt=True)
    assert drafter.nodes == 9 > 2 * 4
    references, drafted = [], np.zeros(len(PROMPTS), int)
    for i, (state, tree) in enumerate(rounds(TARGET, None, drafter, 11, PROMPTS, limit=200)):
        now = texts(state)
        if i == 0:
            references = [
                Reference(drafter, prompt, rows_of(drafter, state.drafter, b)[0]) for b, prompt in enumerate(PROMPTS)
            ]
        assert now == [reference.text for reference in references]
        if i == 10:
            break
        for b, reference in enumerate(references):
            assert rows_of(drafter, state.drafter, b) == reference.rows and len(reference.rows) == min(
                i + 1, drafter.ngram_size - 1
            )
            assert pool_of(state.drafter.pool[b]) == reference.pool
            beginnings = {guess[:n] for guess in reference.guesses() for n in range(1, drafter.ngram_size)}
            assert sorted(spell_paths(tree, b)[1:]) == sorted(beginnings)  # each once
            drafted[b] += len(beginnings)
            reference.round()
    assert state.counters.drafted.tolist() == drafted.tolist()  # the window does not count
    assert np.asarray(state.counters.accepted_at).sum() > 10
    counts = [n for reference in references for known in reference.pool.values() for _, n in known]
    assert (
        max(counts) > 2
        and max(len(known) for reference in references for known in reference.pool.values()) == references[0].size
    )


FOLLOWS = {5: 6, 6: 9, 9: 8, 8: 5, 2: 7, 7: 2, 0: 1, 1: 4, 4: 3, 3: 0}


def test_a_window_derived_by_hand():
    """W = 3, N = 3, G = 2.

    The model reads one token only, so that paper suffices: 5 6 9 8 5 ... and 2 7 2 ...

    Row 0 begins with W + N - 2 = 4 tokens, the first of them the root. The predictions of a row
    become the next row. In each round everything moves one position to the left, under the new
    root:

      round  row 0 (root first)  row 1   predicted  to the pool                             guesses    emitted
      1      5 8 2 6             -       6 5 7 9    nothing: a 3-gram needs two rows        -          6
      2      6 2 6               5 7 9   6 2 8      6 -> 5 6,   2 -> 7 2,   6 -> 9 8        -          9
      3      9 7 9               6 2 8   9 7 5      9 -> 6 9,   7 -> 2 7,   9 -> 8 5        -          8
      4      8 2 8               9 7 5   8 2 6      8 -> 9 8,   2 -> 7 2,   8 -> 5 6        -          5
      5      5 7 5               8 2 6   5 7 9      5 -> 8 5,   7 -> 2 7,   5 -> 6 9        -          6
      6      6 2 6               5 7 9   6 2 8      6 -> 5 6,   2 -> 7 2,   6 -> 9 8        5 6, 9 8   9 8 5
      7      5 7 9               6 2 8   9 7 5      5 -> 6 9,   7 -> 2 7,   9 -> 8 5        8 5, 6 9   6 9 8
      8      8 2 8               9 7 5   8 2 6      8 -> 9 8,   2 -> 7 2,   8 -> 5 6        9 8, 5 6   5 6 9
    """
    drafter, follows = Lookahead(3, 3, 2), jnp.array([FOLLOWS[t] for t in range(10)])

    @jax.jit
    def turn(kept, tokens, length):
        state = SimpleNamespace(
            root=tokens[length],
            tokens=tokens[None],
            prompt_length=jnp.array([1]),
            cache=SimpleNamespace(length=length),
            drafter=kept,
            request=SimpleNamespace(stop_ids=jnp.array([[-1]])),
        )
        tree, _ = drafter.propose(None, None, state, None)
        out = SimpleNamespace(logits=jax.nn.one_hot(follows[tree.tokens], 10))
        verdict = jax.vmap(argmax_walk)(out.logits, tree)
        return tree, verdict, drafter.commit(None, None, state, tree, out, verdict)

    pool = np.zeros((1, 10, 2, 3), np.int32)
    kept = LookaheadState(np.array([[[0, 8, 2, 6], [0] * 4]], np.int32), np.array([0], np.int32), pool)
    window, text, guessed = [], [5], []
    for _ in range(8):
        window.append([[text[-1], *rows_of(drafter, kept, 0)[0]], *rows_of(drafter, kept, 0)[1:]])
        tokens, length = np.array([*text, *[0] * (30 - len(text))], np.int32), np.array([len(text) - 1], np.int32)
        tree, verdict, kept = jax.device_get(turn(kept, tokens, length))
        guessed.append({path for path in spell_paths(tree, 0) if len(path) == 2})
        drafted = tree.tokens[0, verdict.path[0, 1 : verdict.length[0]]].tolist()
        text += [*drafted, int(verdict.bonus[0])]
    assert window == [
        [[5, 8, 2, 6]],
        [[6, 2, 6], [5, 7, 9]],
        [[9, 7, 9], [6, 2, 8]],
        [[8, 2, 8], [9, 7, 5]],
        [[5, 7, 5], [8, 2, 6]],
        [[6, 2, 6], [5, 7, 9]],
        [[5, 7, 9], [6, 2, 8]],
        [[8, 2, 8], [9, 7, 5]],
    ]
    assert guessed == [set()] * 5 + [{(5, 6), (9, 8)}, {(8, 5), (6, 9)}, {(9, 8), (5, 6)}]
    assert text == [5, 6, 9, 8, 5, 6, 9, 8, 5, 6, 9, 8, 5, 6, 9]
    assert pool_of(kept.pool[0]) == {
        2: [((7, 2), 4)],
        5: [((8, 5), 1), ((6, 9), 2)],
        6: [((5, 6), 2), ((9, 8), 2)],
        7: [((2, 7), 3)],
        8: [((9, 8), 2), ((5, 6), 2)],
        9: [((6, 9), 1), ((8, 5), 2)],
    }


def test_a_full_pool_drops_the_ngram_that_was_not_used_for_longest():
    pool = np.zeros((1, 4, 2, 3), np.int32)
    insert = jax.jit(_insert)
    for following, expected in (
        ((1, 1), [((1, 1), 1)]),
        ((2, 2), [((1, 1), 1), ((2, 2), 1)]),
        ((1, 1), [((2, 2), 1), ((1, 1), 2)]),  # a second use moves it to the end
        ((0, 0), [((1, 1), 2), ((0, 0), 1)]),  # (2, 2) is dropped
    ):
        pool = insert(pool, np.array([[3, *following]]), np.array([True]))
        assert pool_of(pool[0]) == {3: expected}
    assert np.array_equal(insert(pool, np.array([[3, 2, 2]]), np.array([False])), pool)


def test_guesses_are_the_most_frequent_ngrams_and_of_equals_the_most_recent():
    drafter = Lookahead(2, 3, 2, pool_guesses=4)
    known = [((1, 1), 1), ((2, 2), 3), ((0, 0), 1), ((3, 1), 1)]  # the least recently used first
    pool = np.zeros((4, 4, 3), np.int32)
    pool[3] = [[*following, count] for following, count in known]
    kept = LookaheadState(np.zeros((2, 3), np.int32), np.int32(1), pool)
    tree = jax.device_get(jax.jit(drafter._propose_row)(np.int32(3), kept))
    assert tree.tokens[drafter.nodes :].tolist() == [2, 2, 3, 1] and tree.valid[drafter.nodes :].all()


def test_end_tokens_are_replaced_in_the_window_but_kept_in_the_pool():
    drafter, prompt = Lookahead(3, 3, 2), [7, 3, 9]
    logits = np.zeros((1, 10, 10), np.float32)
    logits[0, [3, 4, 5], [2, 6, 8]] = 1  # predictions after row 1

    @jax.jit
    def commit(kept):
        state = SimpleNamespace(
            root=jnp.array([9]),
            tokens=jnp.array([prompt]),
            prompt_length=jnp.array([3]),
            cache=SimpleNamespace(length=jnp.array([2])),
            drafter=kept,
            request=SimpleNamespace(stop_ids=jnp.array([[8, 2]])),
        )
        return drafter.commit(None, None, state, None, SimpleNamespace(logits=logits), Verdict(None, None, None))

    window, filled = np.array([[[0, 5, 5, 0], [4, 4, 4, 0]]], np.int32), np.array([1], np.int32)
    kept = jax.device_get(commit(LookaheadState(window, filled, np.zeros((1, 10, 2, 3), np.int32))))
    (a, b, c) = kept.window[0, 1, :3].tolist()
    assert a in prompt and b == 6 and c in prompt
    assert pool_of(kept.pool[0]) == {9: [((4, 2), 1)], 5: [((4, 6), 1), ((4, 8), 1)]}


def drawn_node_by_node(p, tree, key):
    """A wrong walk: equal siblings get draws of their own, and the longer match wins."""
    return _walk(jax.random.categorical(key[0], jnp.log(p)), tree)


@pytest.mark.parametrize(
    ("form", "rule", "exact"),
    [
        ("trie", sample_and_walk, True),
        pytest.param("chains", sample_and_walk, True, marks=pytest.mark.slow),
        pytest.param("chains", drawn_node_by_node, False, marks=pytest.mark.slow),
    ],
    ids=["a trie", "separate chains", "a wrong walk"],
)
def test_guesses_that_begin_alike_leave_the_law_exact(form, rule, exact):
    """Counts of three tokens against a bigram model's law."""
    V, draws, rng = 4, 40_000, np.random.default_rng(0)
    bigram = rng.dirichlet(np.ones(V), V)
    guesses, found = np.array([[1, 2], [1, 3], [1, 0], [2, 2]], np.int32), np.ones(4, bool)
    tokens, *shared = jax.device_get(jax.jit(partial(_trie, first=1))(guesses, found))
    law = np.einsum("a,ab,bc->abc", bigram[0], bigram, bigram)
    chains = np.array([0, 1, 0, 3, 0, 5, 0, 7], np.int32), np.ones(8, bool)
    keys = jax.random.split(jax.random.key(1), (draws, 3))
    judge = jax.jit(lambda p, tree, rule: jax.vmap(partial(rule, p, tree))(keys), static_argnames="rule")
    parent, valid = shared if form == "trie" else chains
    tree = Tree(np.int32([0, *tokens]), np.int32([0, *parent]), np.array([True, *valid]), max_depth=2)
    verdict = jax.device_get(judge(np.float32(bigram[tree.tokens]), tree, rule))
    path, length, bonus = tree.tokens[verdict.path], verdict.length, verdict.bonus
    texts = np.concatenate([path[:, 1:], np.zeros((draws, 1), int)], 1)
    texts[np.arange(draws), length - 1] = bonus
    for place in (1, 2):  # the target draws the tokens after the round
        drawn = (rng.random((draws, 1)) > bigram[texts[:, place - 1]].cumsum(1)[:, :-1]).sum(1)
        texts[:, place] = np.where(length > place, texts[:, place], drawn)
    value = p_value(np.bincount(np.ravel_multi_index(texts.T, (V,) * 3), minlength=V**3), law)
    assert value > 1e-3 if exact else value < 1e-10


def greedy(texts: list[list[int]], prompts: list[list[int]]) -> bool:
    """Whether each text continues its prompt by the argmax of a forward without cache."""
    padded = jnp.array([text + [0] * (96 - len(text)) for text in texts])
    wanted = np.asarray(score(TARGET, padded).argmax(-1))
    return all(
        text == prompt + row[len(prompt) - 1 : len(text) - 1].tolist()
        for text, prompt, row in zip(texts, prompts, wanted)
    )


@pytest.mark.slow
@pytest.mark.parametrize("copies", [8, 1])
def test_the_text_is_greedy_beside_other_rows_and_beside_itself(copies):
    prompts, drafter = [*PROMPTS, *random_prompts(4, 40, vocab_size=12, seed=9)], Lookahead(5, 2, 4)
    state = start(TARGET, None, drafter, prompts)
    alone = finish(TARGET, None, drafter, jax.tree.map(lambda x: x[np.full(copies, 3)] if x.ndim else x, state))
    together = finish(TARGET, None, drafter, state)
    new = new_tokens(together, prompts)
    assert greedy([prompt + more for prompt, more in zip(prompts, new)], prompts) and {len(more) for more in new} == {
        NEW
    }
    assert new_tokens(alone, [prompts[3]] * copies) == [new[3]] * copies
    assert alone.counters.accepted_at[0].tolist() == together.counters.accepted_at[3].tolist()
    assert float(together.counters.accepted_at.sum()) > 0.1 * NEW * len(prompts)


@pytest.mark.slow
def test_eight_devices_compute_two_of_sixteen_nodes_each():
    """Every device holds all weights.

    The text is greedy, and shapes of the compiled products show the split.
    """
    prompts, options = PROMPTS[1:], dict(window=4, ngram_size=3, guesses=4)
    everywhere = NamedSharding(make_mesh(nodes=8), PartitionSpec())
    generator = Generator(language_model(jax.device_put(TARGET, everywhere)), "lookahead", **options)
    results = generator(prompts, max_new_tokens=NEW, ignore_eos=True)
    assert greedy([prompt + list(result.token_ids) for prompt, result in zip(prompts, results)], prompts)
    assert sum(result.stats.accepted for result in results) > 10

    (text,) = (compiled.as_text() for key, compiled in generator.session._compiled.items() if key[0] == "run")
    heads = TARGET.config.num_heads // TARGET.config.num_kv_heads
    rows = {tuple(map(int, shape.split(","))) for shape in re.findall(r"f32\[([\d,]+)\]\S* dot\(", text)}
    assert {shape[0] for shape in rows if len(shape) == 2} == {len(prompts) * 16 // 8}  # weights
    assert {shape[2] for shape in rows if len(shape) == 4} == {heads * 16 // 8}  # attention
    gathers = [i for i in hlo.in_loops(text) if i.opcode.startswith("all-gather")]
    # Nothing of the pool. The branch of accept is that of penalties, which no row asks for.
    assert all("attention" in i.text or "accept/cond/branch_1_fun" in i.text for i in gathers)
    assert any("attention" in i.text for i in gathers)


@pytest.mark.slow
def test_loop_copies_neither_cache_nor_pool():
    program = Program(Lookahead(4, 3, 4, 5, True), 4, options={"xla_backend_optimization_level": 0})
    assert program.state.drafter.pool.size in program.caches
    assert hlo.moved(program.text, program.caches, MOVES) == []


def test_options_out_of_range_are_refused_by_name():
    for options, named in (
        (dict(window=0), "window must be a whole number, at least 1"),
        (dict(ngram_size=1), "ngram_size must be a whole number, at least 2"),
        (dict(guesses=0), "guesses must be"),
        (dict(guesses=1.5), "guesses must be"),
        (dict(guesses=8, pool_guesses=7), "pool_guesses 7 is below guesses 8, which come from it; raise it"),
    ):
        with pytest.raises(RequestError, match=re.escape(named)):
            Lookahead(**options)
