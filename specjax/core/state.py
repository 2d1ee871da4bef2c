"""The state of a batch during decoding: the pytree that the loop carries."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from .automata import advance_tree
from .cache import KVCache
from .context import Context
from .feature_record import Features
from .logit_adjustments import RowConstraints
from .logprobs import Logprobs
from .round_record import Rounds
from .sampling import SamplingParams
from .stats import Counters
from .tree import Tree, ancestors


class Requests(struct.PyTreeNode):
    """A batch of B prompts and their options. They do not change while the batch is decoded.

    Attributes:
      tokens: int32 [B, T], the prompts, left-aligned. T is the capacity: at least ``max(limit) +
        drafter.depth + 1``, and a multiple of the chunk. None within a record that holds the text
        itself: a ``DecodeState``, a ``Batch``.
      lengths: int32 [B], tokens in each prompt, at least 1.
      sampling: the sampling options.
      keys: typed keys [B] of the implementation "threefry2x32".
      limit: int32 [B], the number of tokens at which a row ends, prompt included.
      stop_ids: int32 [B, n], tokens that end a row; -1 matches no token.
      stops: the automaton of all rows' stop strings, with the fields ``next``, ``classes`` and
        ``accept``; or None.
      stop_start: int32 [B], each row's first state in ``stops``; or None for state 0.
      seeded: bool [B], whether the request has a seed of its own; or None if none has. See the rule
        ``walk_if_seeded``.
    """

    tokens: Any
    lengths: jax.Array
    sampling: SamplingParams
    keys: jax.Array
    limit: jax.Array
    stop_ids: jax.Array
    stops: Any = None
    stop_start: jax.Array | None = None
    seeded: jax.Array | None = None

    def context(
        self, tokens: jax.Array, length: jax.Array, nodes: jax.Array, path: jax.Array, states: jax.Array
    ) -> Context:
        """The history of nodes below ``tokens``. The arguments are fields of ``Context``."""
        return Context(
            tokens=tokens,
            prompt_length=self.lengths,
            length=length,
            limit=self.limit,
            stop_ids=self.stop_ids,
            nodes=nodes,
            path=path,
            states=states,
        )

    def without_automata(self) -> "Requests":
        """The requests without constraint and stop strings, whose automata have no axis of rows."""
        return self.replace(sampling=self.sampling.replace(constraint=None), stops=None)

    def with_automata(self, constraint: RowConstraints | None, stops: Any) -> "Requests":
        """The requests with these automata of all rows."""
        return self.replace(sampling=self.sampling.replace(constraint=constraint), stops=stops)


class DecodeState(struct.PyTreeNode):
    """A batch of B rows during decoding.

    Attributes:
      request: the request of each row, whose prompt is in ``tokens``.
      tokens: int32 [B, T], prompt and output of each row. Tokens after the root are void.
      from_draft: bool [B, T], whether each token of the output is an accepted draft.
      cache: the target's keys and values of all tokens before the root.
      drafter: the drafter's own state.
      done: bool [B], whether the row has ended.
      failed: bool [B], whether the row has failed, see ``ending.has_failed``.
      constraint_state: int32 [B], the state of the row's automaton after the root.
      stop_state: int32 [B], the state of the stop strings' automaton after the root.
      round: int32, the number of rounds so far.
      logprobs: log-probabilities of the emitted tokens, or None if they are not recorded.
      counters: sums over rounds, for statistics.
      rounds: the newest rounds, or the features of the newest tokens; None if nothing is recorded.
      progress: int32 [B, R, 3], the drafted tokens of each of the first R rounds that the target
        scored, the accepted ones among them, and the emitted tokens; None if they are not recorded.
    """

    request: Requests
    tokens: jax.Array
    from_draft: jax.Array
    cache: KVCache
    drafter: Any
    done: jax.Array
    failed: jax.Array
    constraint_state: jax.Array
    stop_state: jax.Array
    round: jax.Array
    logprobs: Logprobs | None
    counters: Counters
    rounds: Rounds | Features | None = None
    progress: jax.Array | None = None

    @property
    def prompt_length(self) -> jax.Array:
        """Int32 [B], tokens of each prompt."""
        return self.request.lengths

    @property
    def root(self) -> jax.Array:
        """Int32 [B], the newest token of each row. It is not yet in the cache."""
        return jnp.take_along_axis(self.tokens, self.cache.length[:, None], 1)[:, 0]

    @property
    def length(self) -> jax.Array:
        """Int32 [B], the number of tokens of each row, prompt and root included."""
        return self.cache.length + 1

    def add_progress(self, drafted: jax.Array, accepted: jax.Array, emitted: jax.Array) -> jax.Array | None:
        """``progress`` after this round. The arguments are int32 [B], void for ended rows."""
        if self.progress is None:
            return None
        tokens = jnp.where(self.done[:, None], 0, jnp.stack([drafted, accepted, emitted], 1))
        return self.progress.at[:, self.round].set(tokens)

    def context(self, nodes: jax.Array, path: jax.Array, constraint_states: jax.Array) -> Context:
        """The history of nodes below the root; the arguments are fields of ``Context``."""
        return self.request.context(self.tokens, self.length, nodes, path, constraint_states)

    def tree_context(self, tree: Tree) -> Context:
        """The history of each node of a batched tree."""
        path = jax.vmap(ancestors)(tree).at[:, :, 0].set(False)
        automaton = self.request.sampling.table
        if automaton is None:
            return self.context(tree.tokens, path, jnp.zeros_like(tree.tokens))
        return self.context(tree.tokens, path, advance_tree(automaton, self.constraint_state, tree))

    def target_context(self, tree: Tree) -> Context:
        """``tree_context`` for the target's logits, which the grammars of the host mask too."""
        grammar = self.request.sampling.grammar
        return self.tree_context(tree).replace(grammars=None if grammar is None else jnp.where(self.done, 0, grammar))
