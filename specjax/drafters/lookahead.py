"""Lookahead decoding (Fu et al. 2024): the target guesses n-grams by Jacobi iteration beside the text, and verifies them later.

One forward serves two branches, and both are parts of one token tree:

  lookahead     the window, N - 1 rows of W columns. Row 0 is a chain that begins with the root; a token of a later row is what the
                target said after the one above it. So a column hangs from its token in row 0, and the paper's mask ("row 0 up to
                its column, then its own column") is the tree's. These nodes are only computed: none is valid.
  verification  n-grams of the pool that follow the root, as a trie: the nodes that may be accepted.

After the forward each column, its new last token included, is an n-gram and goes to the pool under the token that leaves row 0.
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax

from ..checks import whole
from ..errors import RequestError
from ..tree import Tree, ancestors


@struct.dataclass
class State:
    """The window and the pool of each row.

    Attributes:
      window: int32 [B, N - 1, C], the oldest row first. The root stands in for column 0 of row 0. C = W + N - 2 columns, of which
        ``C - filled`` are in use: each round that adds a row costs a column.
      filled: int32 [B], rows below row 0 that are there.
      pool: int32 [B, V, P, N], for each token the N - 1 tokens that may follow and how often that came up, the most recent last; a
        count of 0 is a free place.
    """

    window: jax.Array
    filled: jax.Array
    pool: jax.Array


@dataclasses.dataclass(frozen=True)
class Lookahead:
    """Algorithm 2 of the paper; by default with its sizes for a 7B target. A round scores (W + G)(N - 1) nodes.

    The window begins with random tokens of the prompt in row 0 and grows by a row in each of the first N - 2 rounds, in which it yields
    no n-grams yet. Then it moves on by one position a round, however many tokens were accepted. Its tokens are greedy whatever the
    sampling options, so guesses are chosen, not drawn, and ``sample_and_walk`` is exact. Window and pool are functions of the text
    before the root and of earlier windows, never of what is drawn in the round that judges the guesses.

    Attributes:
      window: W, columns of the window.
      ngram_size: N. An n-gram is a token and the N - 1 that follow it.
      guesses: G, n-grams verified in a round.
      pool_guesses: n-grams kept for each token, of which the G that came up most often, among equals the most recent, are verified; by
        default G. A full place gives up the n-gram that has not come up for longest.
      pool_from_prompt: whether n-grams of the text itself, prompt and output, go to the pool too.
    """

    window: int = 15
    ngram_size: int = 5
    guesses: int = 15
    pool_guesses: int | None = None
    pool_from_prompt: bool = False
    sampled: ClassVar[str] = ""
    taps: ClassVar[tuple[int, ...]] = ()
    needs_draft: ClassVar[bool] = False

    def __post_init__(self):
        for name, least in (("window", 1), ("ngram_size", 2), ("guesses", 1)):
            whole(name, getattr(self, name), least)
        if self.pool_guesses is not None and whole("pool_guesses", self.pool_guesses) < self.guesses:
            raise RequestError(
                f"pool_guesses {self.pool_guesses} is below guesses {self.guesses}, which come from it; raise it or leave it out"
            )

    @property
    def depth(self) -> int:
        return self.ngram_size - 1

    @property
    def columns(self) -> int:
        """C, those that row 0 begins with, the root's included."""
        return self.window + self.ngram_size - 2

    @property
    def nodes(self) -> int:
        """Nodes of the window at its largest; while it fills, rows are fewer and longer."""
        return max((filled + 1) * (self.columns - filled) for filled in range(self.depth))

    def init(self, target, draft, tokens, lengths, taps, *, chunk, dtype):
        B, N = tokens.shape[0], self.ngram_size
        window = jnp.zeros((B, self.depth, self.columns), jnp.int32).at[:, 0].set(self._copies(tokens, lengths))
        pool = jnp.zeros((B, target.config.vocab_size, self.pool_guesses or self.guesses, N), jnp.int32)

        def see(i, pool):
            ngram = lax.dynamic_slice_in_dim(tokens, i, N, 1)
            return _inserted(pool, ngram, i + N <= lengths)

        if self.pool_from_prompt:
            pool = lax.fori_loop(0, jnp.max(lengths) - N + 1, see, pool)
        return State(window, jnp.zeros(B, jnp.int32), pool)

    def draft(self, target, draft, state, key):
        return jax.vmap(self._propose)(state.root, state.drafter), state.drafter

    def commit(self, target, draft, state, tree, out, verdict):
        window, filled, full = state.drafter.window, state.drafter.filled, state.drafter.filled == self.depth - 1
        width = (self.columns - filled)[:, None]
        last_row = jnp.minimum(filled[:, None] * width + jnp.arange(self.columns), self.nodes - 1)  # void from ``width`` on
        said = jnp.argmax(jnp.take_along_axis(out.logits, last_row[:, :, None], 1), -1).astype(jnp.int32)

        leaving = window[:, :1].at[:, 0, 0].set(state.root)
        ngrams = jnp.concatenate([leaving, window[:, 1:], said[:, None]], 1)[:, :, : self.window].swapaxes(1, 2)  # [B, W, N]
        seen = jnp.broadcast_to(full[:, None], ngrams.shape[:2])
        if self.pool_from_prompt:
            emitted, new = self._emitted(state, tree, verdict)
            ngrams, seen = jnp.concatenate([ngrams, emitted], 1), jnp.concatenate([seen, new], 1)
        pool = lax.fori_loop(0, ngrams.shape[1], lambda i, pool: _inserted(pool, ngrams[:, i], seen[:, i]), state.drafter.pool)

        ends = (said[:, :, None] == state.stop_ids[:, None]).any(-1)  # what the target says after the end is no guess at the text
        fresh = jnp.where(ends, self._copies(state.tokens, state.prompt), said)[:, None]
        moved = jnp.concatenate([window[:, 1:], fresh], 1)
        below = (jnp.arange(self.depth) == filled[:, None] + 1)[:, :, None]
        grown = jnp.roll(jnp.where(below, fresh, window), -1, 2)
        return State(jnp.where(full[:, None, None], moved, grown), jnp.minimum(filled + 1, self.depth - 1), pool)

    def _propose(self, root: jax.Array, state: State) -> Tree:
        """The window and the guesses of one row, in this order."""
        node, width = jnp.arange(self.nodes), self.columns - state.filled
        row, column = node // width, node % width
        void = row > state.filled
        tokens = state.window[jnp.where(void, 0, row), column].at[0].set(root)
        parent = jnp.where(void, 0, jnp.where(row > 0, node - width, jnp.maximum(node - 1, 0)))

        known = state.pool[root]
        places = jnp.arange(known.shape[0])
        best = lax.top_k(known[:, -1] * places.size + places, self.guesses)[1]
        guessed, above, valid = _trie(known[best, :-1], known[best, -1] > 0, self.nodes)

        tokens, parent = jnp.concatenate([tokens, guessed]), jnp.concatenate([parent, above])
        tree = Tree(tokens, parent, jnp.concatenate([node == 0, valid]), max_depth=max(self.columns - 1, self.depth))
        return tree.replace(mask=ancestors(tree), max_depth=self.depth)

    def _copies(self, tokens: jax.Array, lengths: jax.Array) -> jax.Array:
        """Int32 [B, C], tokens from random places of the prompts; the same places each time, whatever the batch."""
        places = jax.random.uniform(jax.random.key(0), (self.columns,)) * lengths[:, None].astype(jnp.float32)
        return jnp.take_along_axis(tokens, jnp.minimum(places.astype(jnp.int32), lengths[:, None] - 1), 1)

    def _emitted(self, state, tree: Tree, verdict) -> tuple[jax.Array, jax.Array]:
        """The n-grams of the text that end with each token of this round, int32 [B, N, N], and which of them there are, bool [B, N]."""
        N, place = self.ngram_size, jnp.arange(self.ngram_size)
        before = state.cache.length[:, None] - jnp.arange(N - 2, -1, -1)
        text = jnp.take_along_axis(state.tokens, jnp.maximum(before, 0), 1)
        drafted = jnp.take_along_axis(tree.tokens, jnp.roll(verdict.path, -1, 1), 1)
        new = jnp.where(place == verdict.length[:, None] - 1, verdict.bonus[:, None], drafted)
        ngrams = jnp.concatenate([text, new], 1)[:, place[:, None] + place]
        return ngrams, (place < verdict.length[:, None]) & (before[:, :1] + place >= 0)


def _inserted(pool: jax.Array, ngrams: jax.Array, wanted: jax.Array) -> jax.Array:
    """The pool [B, V, P, N] in which one n-gram of each row, int32 [B, N], is the most recent of its first token's, where wanted."""

    def insert(pool, ngram, wanted):
        known = pool[ngram[0]]
        same = (known[:, :-1] == ngram[1:]).all(-1) & (known[:, -1] > 0)
        at = jnp.argmax(same)  # it moves to the end; if it is new, place 0 is given up, which is free or the least recent
        count = jnp.where(same[at], known[at, -1], 0) + 1
        others = jnp.where(jnp.arange(known.shape[0])[:, None] < at, known, jnp.roll(known, -1, 0))
        known = others.at[-1].set(jnp.append(ngram[1:], count))
        return pool.at[jnp.where(wanted, ngram[0], pool.shape[0])].set(known, mode="drop")

    return jax.vmap(insert)(pool, ngrams, wanted)


def _trie(guesses: jax.Array, found: jax.Array, first: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Guesses int32 [G, N - 1], of which those found count, as nodes from number ``first`` on below the root.

    Guesses that begin alike share the nodes of the first of them; their own are void.

    Returns tokens, parents and validity, each [G (N - 1)].
    """
    G, depth = guesses.shape
    alike = jnp.cumprod(guesses[:, None] == guesses, -1, dtype=jnp.int32) * found[:, None].astype(jnp.int32)
    owner = jnp.argmax(alike, 1)  # [G, N - 1]: the first guess with the same beginning, up to and including each token
    above = first + owner[:, :-1] * depth + jnp.arange(depth - 1)
    parent = jnp.concatenate([jnp.zeros((G, 1), above.dtype), above], 1)
    valid = found[:, None] & (owner == jnp.arange(G)[:, None])
    return guesses.ravel(), parent.ravel(), valid.ravel()
