"""Lookahead decoding (Fu et al. 2024): the target guesses n-grams, and verifies them later.

The guesses come from Jacobi iteration. One forward runs two branches, parts of one token tree:

  lookahead     the window, N - 1 rows of W columns. Row 0 is a chain that begins with the root. A
                token of a later row is the target's prediction after the token above it. A column
                therefore hangs from its token in row 0. The paper's mask ("row 0 up to its column,
                then its own column") is then the mask of the tree. No node of the window is valid.
  verification  the n-grams of the pool that may follow the root, as a trie of valid nodes.

After the forward each column, with its new last token, is an n-gram. The pool stores it under the
token that leaves row 0.
"""

import dataclasses

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax

from ..core.sampling import KEYS
from ..core.selection import argmax
from ..core.tree import MOST_TREE_NODES, Tree, ancestors, node_count
from ..errors import RequestError
from ..loop.drafter import Drafter


class LookaheadState(struct.PyTreeNode):
    """The window and the pool of each row.

    Attributes:
      window: int32 [B, N - 1, C], the oldest row first. The root replaces column 0 of row 0. C is
        W + N - 2. The first ``C - filled`` columns are in use: each added row uses up one column.
      filled: int32 [B], the number of rows below row 0.
      pool: int32 [B, V, P, N]. Each token has P places, the most recent last. A place holds N - 1
        tokens that may follow, and their count. A count of 0 marks a free place.
    """

    window: jax.Array
    filled: jax.Array
    pool: jax.Array


@dataclasses.dataclass(frozen=True)
class Lookahead(Drafter):
    """Lookahead decoding, Algorithm 2 of the paper. A round scores (W + G) * (N - 1) nodes.

    The default sizes are the paper's for a 7B target. The window begins with random tokens of the
    prompt in row 0. It grows by a row in each of the first N - 2 rounds, and yields no n-grams
    until then. After that it moves on by one position in each round, however many tokens are
    accepted.

    The tokens of the window are greedy under all sampling options: guesses are chosen, not drawn,
    and ``sample_and_walk`` is exact. Window and pool depend on the text before the root and on
    earlier windows, never on the draws of the round that tests them.

    Attributes:
      window: W, columns of the window.
      ngram_size: N. An n-gram is a token and the N - 1 tokens that follow it.
      guesses: G, n-grams verified in a round.
      pool_guesses: n-grams kept for each token; by default G. The G most frequent are verified;
        among equally frequent ones the most recent. A full pool drops the n-gram that was not seen
        for longest.
      pool_from_prompt: whether n-grams of prompt and output go into the pool too.
    """

    window: int = 15
    ngram_size: int = 5
    guesses: int = 15
    pool_guesses: int | None = None
    pool_from_prompt: bool = False

    def __post_init__(self):
        for name, least in (("window", 1), ("ngram_size", 2), ("guesses", 1)):
            node_count(name, getattr(self, name), least)
        if self.pool_guesses is not None and node_count("pool_guesses", self.pool_guesses) < self.guesses:
            raise RequestError(
                f"pool_guesses {self.pool_guesses} is below guesses {self.guesses}, which come from it; raise it or "
                "leave it out"
            )
        if self.nodes + self.guesses * self.depth > MOST_TREE_NODES:
            raise RequestError(
                f"window {self.window}, ngram_size {self.ngram_size} and guesses {self.guesses} make a round of more"
                f" than {MOST_TREE_NODES} tokens (MOST_TREE_NODES); lower one of them"
            )

    @property
    def depth(self) -> int:
        return self.ngram_size - 1

    @property
    def columns(self) -> int:
        """C, the number of columns of row 0 at the beginning, the root's included."""
        return self.window + self.ngram_size - 2

    @property
    def nodes(self) -> int:
        """The most nodes of the window. While it fills, it has fewer and longer rows."""
        return max((filled + 1) * (self.columns - filled) for filled in range(self.depth))

    def init(self, target, draft, tokens, lengths, taps, *, chunk, dtype):
        B = tokens.shape[0]
        N = self.ngram_size
        window = jnp.zeros((B, self.depth, self.columns), jnp.int32).at[:, 0].set(self._copies(tokens, lengths))
        pool = jnp.zeros((B, target.config.vocab_size, self.pool_guesses or self.guesses, N), jnp.int32)

        def see(i, pool):
            ngram = lax.dynamic_slice_in_dim(tokens, i, N, 1)
            return _insert(pool, ngram, i + N <= lengths)

        if self.pool_from_prompt:
            pool = lax.fori_loop(0, jnp.max(lengths) - N + 1, see, pool)
        return LookaheadState(window, jnp.zeros(B, jnp.int32), pool)

    def propose(self, target, draft, state, key):
        return jax.vmap(self._propose_row)(state.root, state.drafter), state.drafter

    def commit(self, target, draft, state, tree, scored, verdict):
        window = state.drafter.window
        filled = state.drafter.filled
        full = state.drafter.filled == self.depth - 1
        width = (self.columns - filled)[:, None]
        last_row = jnp.minimum(filled[:, None] * width + jnp.arange(self.columns), self.nodes - 1)
        # The predictions are void from ``width`` on.
        predicted = argmax(jnp.take_along_axis(scored.logits, last_row[:, :, None], 1))

        leaving = window[:, :1].at[:, 0, 0].set(state.root)
        columns = jnp.concatenate([leaving, window[:, 1:], predicted[:, None]], 1)
        ngrams = columns[:, :, : self.window].swapaxes(1, 2)  # [B, W, N]
        seen = jnp.broadcast_to(full[:, None], ngrams.shape[:2])
        if self.pool_from_prompt:
            emitted, new = self._emitted(state, tree, verdict)
            ngrams = jnp.concatenate([ngrams, emitted], 1)
            seen = jnp.concatenate([seen, new], 1)
        insert = lambda i, pool: _insert(pool, ngrams[:, i], seen[:, i])
        pool = lax.fori_loop(0, ngrams.shape[1], insert, state.drafter.pool)

        # Predictions after a stop token guess nothing. Tokens of the prompt replace them.
        ends = (predicted[:, :, None] == state.request.stop_ids[:, None]).any(-1)
        fresh = jnp.where(ends, self._copies(state.tokens, state.prompt_length), predicted)[:, None]
        moved = jnp.concatenate([window[:, 1:], fresh], 1)
        below = (jnp.arange(self.depth) == filled[:, None] + 1)[:, :, None]
        grown = jnp.roll(jnp.where(below, fresh, window), -1, 2)
        window = jnp.where(full[:, None, None], moved, grown)
        return LookaheadState(window, jnp.minimum(filled + 1, self.depth - 1), pool)

    def rest(self, target, draft, state, tree, scored, verdict) -> LookaheadState:
        return state.drafter

    def _propose_row(self, root: jax.Array, state: LookaheadState) -> Tree:
        """The window and the guesses of one row, in this order."""
        node = jnp.arange(self.nodes)
        width = self.columns - state.filled
        row = node // width
        column = node % width
        void = row > state.filled
        tokens = state.window[jnp.where(void, 0, row), column].at[0].set(root)
        parent = jnp.where(void, 0, jnp.where(row > 0, node - width, jnp.maximum(node - 1, 0)))

        known = state.pool[root]
        places = jnp.arange(known.shape[0])
        best = lax.top_k(known[:, -1] * places.size + places, self.guesses)[1]
        guessed, above, valid = _trie(known[best, :-1], known[best, -1] > 0, self.nodes)

        tokens = jnp.concatenate([tokens, guessed])
        parent = jnp.concatenate([parent, above])
        tree = Tree(tokens, parent, jnp.concatenate([node == 0, valid]), max_depth=max(self.columns - 1, self.depth))
        return tree.replace(mask=ancestors(tree), max_depth=self.depth)

    def _copies(self, tokens: jax.Array, lengths: jax.Array) -> jax.Array:
        """Int32 [B, C], tokens from random places of the prompts.

        The places depend neither on the call nor on the batch.
        """
        uniform = jax.random.uniform(jax.random.key(0, impl=KEYS), (self.columns,))
        places = uniform * lengths[:, None].astype(jnp.float32)
        return jnp.take_along_axis(tokens, jnp.minimum(places.astype(jnp.int32), lengths[:, None] - 1), 1)

    def _emitted(self, state, tree: Tree, verdict) -> tuple[jax.Array, jax.Array]:
        """The n-grams int32 [B, N, N] that end with each token of this round.

        Also bool [B, N], whether each of them exists.
        """
        N = self.ngram_size
        place = jnp.arange(self.ngram_size)
        before = state.cache.length[:, None] - jnp.arange(N - 2, -1, -1)
        text = jnp.take_along_axis(state.tokens, jnp.maximum(before, 0), 1)
        drafted = jnp.take_along_axis(tree.tokens, jnp.roll(verdict.path, -1, 1), 1)
        new = jnp.where(place == verdict.length[:, None] - 1, verdict.bonus[:, None], drafted)
        ngrams = jnp.concatenate([text, new], 1)[:, place[:, None] + place]
        return ngrams, (place < verdict.length[:, None]) & (before[:, :1] + place >= 0)


def _insert(pool: jax.Array, ngrams: jax.Array, wanted: jax.Array) -> jax.Array:
    """The pool [B, V, P, N] with one more n-gram int32 [B, N] in the rows ``wanted`` bool [B]."""

    def insert(pool, ngram, wanted):
        known = pool[ngram[0]]
        same = (known[:, :-1] == ngram[1:]).all(-1) & (known[:, -1] > 0)
        # A known n-gram moves to the end. A new one replaces place 0, which is free or the oldest.
        at = jnp.argmax(same)
        count = jnp.where(same[at], known[at, -1], 0) + 1
        others = jnp.where(jnp.arange(known.shape[0])[:, None] < at, known, jnp.roll(known, -1, 0))
        known = others.at[-1].set(jnp.append(ngram[1:], count))
        return pool.at[jnp.where(wanted, ngram[0], pool.shape[0])].set(known, mode="drop")

    return jax.vmap(insert)(pool, ngrams, wanted)


def _trie(guesses: jax.Array, is_match: jax.Array, first: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Guesses as a trie below the root: tokens, parents and validity of nodes, each [G * (N - 1)].

    Guesses with the same beginning share the nodes of the first of them. Their own nodes are not
    valid.

    Args:
      guesses: int32 [G, N - 1].
      is_match: bool [G], whether each guess exists.
      first: the number of the first node.
    """
    G, depth = guesses.shape
    alike = jnp.cumprod(guesses[:, None] == guesses, -1, dtype=jnp.int32) * is_match[:, None].astype(jnp.int32)
    owner = jnp.argmax(alike, 1)  # [G, N - 1]: the first guess that is the same up to this token, included
    above = first + owner[:, :-1] * depth + jnp.arange(depth - 1)
    parent = jnp.concatenate([jnp.zeros((G, 1), above.dtype), above], 1)
    valid = is_match[:, None] & (owner == jnp.arange(G)[:, None])
    return guesses.ravel(), parent.ravel(), valid.ravel()
