"""Measures ideas that specjax leaves out, beside those that it has. ``docs/choices.md`` has the figures.

    python scripts/choices.py pool     # lookahead's pool, ranked by count, recency or likelihood
    python scripts/choices.py context  # lookahead's pool, ranked by the similarity of contexts
    python scripts/choices.py window   # lookahead's window, narrower in some rounds
    python scripts/choices.py length   # the draft's length by a bandit, beside "ema" and fixed lengths
    python scripts/choices.py sparse   # a draft with zeros in its matrices

The figures are tokens a target call. For ``length`` they are tokens in the time of a plain call, in
the model of ``Adaptive``: a drafted token costs 0.1 for the draft and 0.1 for the target.
"""

import argparse
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax

from specjax import Generator, load
from specjax.drafters import Adaptive, DraftModel, Lookahead
from specjax.drafters.adaptive import AdaptiveState
from specjax.drafters.lookahead import LookaheadState, _insert
from specjax.evaluation import held_out_prompts

PROMPTS = 16


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    trials = {"pool": try_pool, "context": try_context, "window": try_window}
    trials |= {"length": try_length, "sparse": try_sparse}
    parser.add_argument("trial", choices=trials)
    parser.add_argument("--temperature", type=float, default=0.0)
    args = parser.parse_args()
    trials[args.trial](args.temperature)


def tokens_a_call(generator: Generator, prompts, temperature: float) -> float:
    results = generator(prompts, max_new_tokens=128, temperature=temperature, ignore_eos=True)
    stats = [result.stats for result in results]
    return sum(s.generated for s in stats) / sum(s.target_calls for s in stats)


class RankedState(LookaheadState):
    """``LookaheadState``, and the target's log-probability of each token of the window, [B, N - 1, C]."""

    logs: Any = None


@dataclasses.dataclass(frozen=True)
class RankedPool(Lookahead):
    """Lookahead whose pool is ranked by ``order``.

    "count" is the method's own order. "recency" leaves the count out. "likelihood" takes the
    geometric mean of the probabilities that the target gave to the n-gram's tokens when it guessed
    them, "weighted" the sum of these means over all times that the n-gram was seen.
    """

    order: str = "count"

    def init(self, target, draft, tokens, lengths, taps, *, chunk, dtype):
        own = super().init(target, draft, tokens, lengths, taps, chunk=chunk, dtype=dtype)
        return RankedState(own.window, own.filled, own.pool, jnp.zeros(own.window.shape))

    def propose(self, target, draft, state, key):
        own, pool = state.drafter, state.drafter.pool
        ranked = pool.at[..., -1].min(1) if self.order == "recency" else pool
        return jax.vmap(self._propose_row)(state.root, own.replace(pool=ranked)), own

    def commit(self, target, draft, state, tree, scored, verdict):
        own, after = state.drafter, super().commit(target, draft, state, tree, scored, verdict)
        width = (self.columns - own.filled)[:, None]
        last_row = jnp.minimum(own.filled[:, None] * width + jnp.arange(self.columns), self.nodes - 1)
        logits = jnp.take_along_axis(scored.logits, last_row[:, :, None], 1).astype(jnp.float32)
        predicted, newest = jnp.argmax(logits, -1).astype(jnp.int32), jax.nn.log_softmax(logits).max(-1)
        if self.order in ("likelihood", "weighted"):
            columns = jnp.concatenate([own.window.at[:, 0, 0].set(state.root), predicted[:, None]], 1)
            mean = jnp.exp(jnp.concatenate([own.logs[:, 1:], newest[:, None]], 1).mean(1))
            full = own.filled == self.depth - 1
            after = after.replace(pool=self._weigh(own.pool, columns, jnp.int32(1 + 1000 * mean), full))
        full = (own.filled == self.depth - 1)[:, None, None]
        below = (jnp.arange(self.depth) == own.filled[:, None] + 1)[:, :, None]
        moved = jnp.concatenate([own.logs[:, 1:], newest[:, None]], 1)
        grown = jnp.roll(jnp.where(below, newest[:, None], own.logs), -1, 2)
        return RankedState(after.window, after.filled, after.pool, jnp.where(full, moved, grown))

    def _weigh(self, pool, columns, weights, wanted):
        """The pool with the n-grams of ``columns`` [B, N, C] added, each with its weight for a count."""

        def insert(pool, ngram, weight, wanted):
            known = pool[ngram[0]]
            same = (known[:, :-1] == ngram[1:]).all(-1) & (known[:, -1] > 0)
            at = jnp.argmax(same)
            weight += jnp.where(same[at] & (self.order == "weighted"), known[at, -1], 0)
            others = jnp.where(jnp.arange(known.shape[0])[:, None] < at, known, jnp.roll(known, -1, 0))
            known = others.at[-1].set(jnp.append(ngram[1:], weight))
            return pool.at[jnp.where(wanted, ngram[0], pool.shape[0])].set(known, mode="drop")

        add = lambda i, pool: jax.vmap(insert)(pool, columns[:, :, i], weights[:, i], wanted)
        return lax.fori_loop(0, self.window, add, pool)


def try_pool(temperature: float):
    target = load("tiny-python")
    prompts = held_out_prompts(target.tokenizer, PROMPTS, 128)
    for guesses, kept in ((2, 16), (1, 8)):
        for order in ("count", "recency", "likelihood", "weighted"):
            drafter = RankedPool(10, 4, guesses, kept, order=order)
            generator = Generator(target, "lookahead", window=10, ngram_size=4, guesses=guesses, pool_guesses=kept)
            generator.session.drafter = drafter
            print(f"{guesses} of {kept} by {order}: {tokens_a_call(generator, prompts, temperature):.2f}", flush=True)


class ContextState(LookaheadState):
    """``LookaheadState``, and vectors of contexts.

    A context is the target's hidden state after the token before an n-gram, projected to ``_KEY`` numbers.

    Attributes:
      keys: float32 [B, V, P, _KEY], the context in which each n-gram was seen last.
      context: float32 [B, _KEY], the context of the root.
    """

    keys: Any = None
    context: Any = None


_KEY = 64


@dataclasses.dataclass(frozen=True)
class ContextPool(Lookahead):
    """Lookahead whose pool is ranked by the cosine of contexts, plus ``weight`` times log count."""

    weight: float = 0.0

    def init(self, target, draft, tokens, lengths, taps, *, chunk, dtype):
        own = super().init(target, draft, tokens, lengths, taps, chunk=chunk, dtype=dtype)
        context = jnp.zeros((lengths.size, _KEY))
        return ContextState(own.window, own.filled, own.pool, jnp.zeros((*own.pool.shape[:3], _KEY)), context)

    def propose(self, target, draft, state, key):
        own = state.drafter
        return jax.vmap(self._propose_similar)(state.root, own), own

    def _propose_similar(self, root, own):
        counts = own.pool[root, :, -1]
        score = own.keys[root] @ own.context + self.weight * jnp.log(jnp.maximum(counts, 1))
        order = 1 + jnp.argsort(jnp.argsort(score)).astype(jnp.int32)
        return self._propose_row(root, own.replace(pool=own.pool.at[root, :, -1].set(jnp.where(counts > 0, order, 0))))

    def commit(self, target, draft, state, tree, scored, verdict):
        own, after = state.drafter, super().commit(target, draft, state, tree, scored, verdict)
        width = (self.columns - own.filled)[:, None]
        last_row = jnp.minimum(own.filled[:, None] * width + jnp.arange(self.columns), self.nodes - 1)
        predicted = jnp.argmax(jnp.take_along_axis(scored.logits, last_row[:, :, None], 1), -1).astype(jnp.int32)
        columns = jnp.concatenate([own.window.at[:, 0, 0].set(state.root), predicted[:, None]], 1)
        before = jnp.concatenate([own.context[:, None], _project(scored.hidden[:, : self.window - 1])], 1)

        def insert(pool, keys, ngram, context, wanted):
            known, vectors = pool[ngram[0]], keys[ngram[0]]
            same = (known[:, :-1] == ngram[1:]).all(-1) & (known[:, -1] > 0)
            at = jnp.argmax(same)
            count = jnp.where(same[at], known[at, -1], 0) + 1
            stays = (jnp.arange(len(known)) < at)[:, None]
            moved = lambda rows, newest: jnp.where(stays, rows, jnp.roll(rows, -1, 0)).at[-1].set(newest)
            place = jnp.where(wanted, ngram[0], len(pool))
            pool = pool.at[place].set(moved(known, jnp.append(ngram[1:], count)), mode="drop")
            return pool, keys.at[place].set(moved(vectors, context), mode="drop")

        full = own.filled == self.depth - 1
        add = lambda i, both: jax.vmap(insert)(*both, columns[:, :, i], before[:, i], full)
        pool, keys = lax.fori_loop(0, self.window, add, (own.pool, own.keys))
        last = jnp.take_along_axis(verdict.path, jnp.maximum(verdict.length - 1, 0)[:, None], 1)
        context = _project(jnp.take_along_axis(scored.hidden, last[:, :, None], 1)[:, 0])
        return ContextState(after.window, after.filled, pool, keys, context)


def _project(hidden):
    """Unit vectors [..., _KEY]: a random projection, which nearly keeps cosines."""
    projection = jax.random.normal(jax.random.key(0), (hidden.shape[-1], _KEY))
    projected = hidden @ projection
    return projected / jnp.maximum(jnp.linalg.norm(projected, axis=-1, keepdims=True), 1e-6)


def try_context(temperature: float):
    target = load("tiny-python")
    prompts = held_out_prompts(target.tokenizer, PROMPTS, 128)
    for guesses, kept in ((2, 16), (1, 8)):
        sizes = dict(window=10, ngram_size=4, guesses=guesses, pool_guesses=kept)
        for name, drafter in {
            "count": Lookahead(**sizes),
            "context": ContextPool(**sizes),
            "context and count": ContextPool(**sizes, weight=0.3),
        }.items():
            generator = Generator(target, "lookahead", **sizes)
            generator.session.drafter = drafter
            print(f"{guesses} of {kept} by {name}: {tokens_a_call(generator, prompts, temperature):.2f}", flush=True)


class NarrowState(LookaheadState):
    """``LookaheadState``, and float32 [B]: emitted tokens a round, lately and at all times, and columns read."""

    lately: Any = None
    always: Any = None
    columns: Any = None


@dataclasses.dataclass(frozen=True)
class NarrowWindow(Lookahead):
    """Lookahead whose window has half its columns in some rounds.

    ``narrow`` says in which: "good" rounds follow rounds that emitted more than the mean, "bad" rounds
    follow the others. The other half yields no n-grams then. It moves on all the same, which flatters
    the method: a window that is not computed would be stale in the next wide round.
    """

    narrow: str = "good"

    def init(self, target, draft, tokens, lengths, taps, *, chunk, dtype):
        own = super().init(target, draft, tokens, lengths, taps, chunk=chunk, dtype=dtype)
        once = jnp.ones(lengths.size)
        return NarrowState(own.window, own.filled, own.pool, once, once, 0 * once)

    def commit(self, target, draft, state, tree, scored, verdict):
        own, wide = state.drafter, super().commit(target, draft, state, tree, scored, verdict)
        half = dataclasses.replace(self, window=self.window // 2)
        # A window of W columns has W + N - 2 of them in row 0; the narrow one reads the first of these.
        narrow = (own.lately > own.always) if self.narrow == "good" else (own.lately < own.always)
        pool = _pool_of(half, own, state, scored, self)
        kept = jnp.where(narrow[:, None, None, None], pool, wide.pool)
        emitted, read = verdict.length.astype(jnp.float32), jnp.where(narrow, half.window, self.window)
        lately, always = 0.8 * own.lately + 0.2 * emitted, 0.98 * own.always + 0.02 * emitted
        columns = own.columns + jnp.where(state.done, 0, read)
        return NarrowState(wide.window, wide.filled, kept, lately, always, columns)


def _pool_of(half: Lookahead, own, state, scored, whole: Lookahead):
    """The pool after a round that reads only the columns of ``half``."""
    width = (whole.columns - own.filled)[:, None]
    last_row = jnp.minimum(own.filled[:, None] * width + jnp.arange(whole.columns), whole.nodes - 1)
    predicted = jnp.argmax(jnp.take_along_axis(scored.logits, last_row[:, :, None], 1), -1).astype(jnp.int32)
    columns = jnp.concatenate([own.window.at[:, 0, 0].set(state.root), predicted[:, None]], 1)
    full = own.filled == whole.depth - 1
    return lax.fori_loop(0, half.window, lambda i, pool: _insert(pool, columns[:, :, i], full), own.pool)


def try_window(temperature: float):
    target = load("tiny-python")
    prompts = held_out_prompts(target.tokenizer, PROMPTS, 128)
    sizes = dict(ngram_size=4, guesses=4)
    trials = {f"W = {window}": Lookahead(window=window, **sizes) for window in (4, 6, 8, 16)}
    trials |= {f"8 or 16, narrow after {how} rounds": NarrowWindow(16, 4, 4, narrow=how) for how in ("good", "bad")}
    for name, drafter in trials.items():
        generator = Generator(target, "lookahead", window=drafter.window, **sizes)
        generator.session.drafter = drafter
        decoding = generator.start(prompts, max_new_tokens=128, temperature=temperature, ignore_eos=True)
        generator.session.advance(decoding)
        state = decoding.state
        calls, new = int(state.counters.calls.sum()), int((state.length - state.prompt_length).sum())
        narrow = isinstance(drafter, NarrowWindow)
        read = float(state.drafter.columns.sum()) / calls if narrow else drafter.window
        print(f"{name}: {new / calls:.2f} with {read:.1f} columns a round", flush=True)


class TimedState(AdaptiveState):
    """``AdaptiveState``, the time of each row [B], and for each length [B, L] discounted sums over rounds."""

    time: Any = None
    rounds: Any = None
    emitted: Any = None
    spent: Any = None


@dataclasses.dataclass(frozen=True)
class Timed(Adaptive):
    """``Adaptive`` with a clock. A bandit takes the length with the most tokens in a time unit.

    The reward of a length is its emitted tokens over its time. ``how`` is "ema", a fixed length,
    "ucb" (upper confidence bound) or "thompson" (a draw around the mean).
    """

    how: str = "ema"
    width: float = 0.3
    memory: float = 0.95

    def init(self, target, draft, tokens, lengths, taps, *, chunk, dtype):
        own = super().init(target, draft, tokens, lengths, taps, chunk=chunk, dtype=dtype)
        first = (
            own.wanted if self.how == "ema" else jnp.full_like(own.wanted, int(self.how) if self.how.isdigit() else 4)
        )
        once = jnp.ones((lengths.size, len(self.shapes)))
        return TimedState(own.inner, first, own.acceptance, jnp.zeros(lengths.size), once, 1.5 * once, once)

    def commit(self, target, draft, state, tree, scored, verdict):
        own, after = state.drafter, super().commit(target, draft, state, tree, scored, verdict)
        lengths, going = jnp.array(self.shapes), ~state.done
        time = 1 + own.wanted.astype(jnp.float32) * (self.draft_cost + self.verify_cost)
        used = (lengths == own.wanted[:, None]).astype(jnp.float32)
        add = lambda old, new: jnp.where(going[:, None], self.memory * old + used * new[:, None], old)
        rounds, spent = add(own.rounds, jnp.ones_like(time)), add(own.spent, time)
        emitted, wanted = add(own.emitted, verdict.length.astype(jnp.float32)), after.wanted
        if self.how == "ucb":
            bonus = self.width * jnp.sqrt(jnp.log(1 + rounds.sum(1, keepdims=True)) / rounds)
            wanted = lengths[jnp.argmax(emitted / spent + bonus, 1)]
        elif self.how == "thompson":
            keys = jax.vmap(lambda key, n: jax.random.fold_in(key, n))(state.request.keys, state.cache.length)
            noise = jax.vmap(lambda key: jax.random.normal(key, lengths.shape))(keys)
            wanted = lengths[jnp.argmax(emitted / spent + self.width * noise / jnp.sqrt(rounds), 1)]
        elif self.how != "ema":
            wanted = own.wanted
        clock = own.time + jnp.where(going, time, 0)
        return TimedState(after.inner, wanted, after.acceptance, clock, rounds, emitted, spent)


def try_length(temperature: float):
    target, draft = load("tiny-python"), load("tiny-python-draft")
    prompts = held_out_prompts(target.tokenizer, PROMPTS, 96)
    bandits = [("ucb", 0.1, 0.95), ("ucb", 0.3, 0.95), ("ucb", 0.3, 0.99), ("thompson", 0.3, 0.95)]
    settings = [("2", 0, 0), ("4", 0, 0), ("8", 0, 0), ("ema", 0, 0), *bandits]
    for how, width, memory in settings:
        generator = Generator(target, "draft_model", draft, num_speculative_tokens=8)
        costs = dict(draft_cost=0.1, verify_cost=0.1)
        generator.session.drafter = Timed(DraftModel(8), "ema", how=how, width=width, memory=memory, **costs)
        decoding = generator.start(prompts, max_new_tokens=192, temperature=temperature, ignore_eos=True)
        generator.session.advance(decoding)
        state = decoding.state
        speed = float((state.length - state.prompt_length).sum() / state.drafter.time.sum())
        print(f"{how} {width or ''} {memory or ''}: {speed:.3f}", flush=True)


def try_sparse(temperature: float):
    """Zeros for the smallest weights of each matrix but embeddings and output, without training after it."""
    target, draft = load("tiny-python"), load("tiny-python-draft")
    prompts = held_out_prompts(target.tokenizer, PROMPTS, 96)
    generator = Generator(target, "draft_model", draft)
    graph, params = nnx.split(generator.session.parameters)

    def smallest(share: float):
        return lambda size: size >= jnp.quantile(size, share)

    def two_of_four(size):
        groups = size.reshape(size.shape[0], -1, 4)
        return (jnp.argsort(jnp.argsort(-groups, -1), -1) < 2).reshape(size.shape)

    kept = {"dense": jnp.isfinite, "30 %": smallest(0.3), "50 %": smallest(0.5), "2 of 4": two_of_four}
    for name, keep in kept.items():

        def thin(path, x, keep=keep):
            inner = x.ndim == 2 and not {"embed", "head"} & {getattr(key, "key", None) for key in path}
            return jnp.where(keep(jnp.abs(x.astype(jnp.float32))), x, 0).astype(x.dtype) if inner else x

        thinned = jax.tree_util.tree_map_with_path(thin, params)
        zeros = np.mean(np.concatenate([np.ravel(np.asarray(x, np.float32) == 0) for x in jax.tree.leaves(thinned)]))
        generator.session.parameters = nnx.merge(graph, thinned)
        print(
            f"{name}, {zeros:.0%} of all weights are zero: {tokens_a_call(generator, prompts, temperature):.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
