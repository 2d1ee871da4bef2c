"""A loop inside a round: rounds of ``decode`` in which another model stands in the target's place.

An exact rule tests the inner proposals, so the loop emits samples of that model's own distribution.
Tokens beyond the wanted number are dropped. Their number does not depend on the kept tokens, so
these stay exact.
"""

import dataclasses

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax

from ...core.cache import KVCache
from ...core.state import DecodeState, Requests
from ...core.stats import Counters
from ...core.tree import Tree, chain, node_count
from ...loop.decode import Round, accept, commit, propose, round_keys, score
from ...loop.drafter import Drafter
from ...models.base import Model
from ...rules.acceptance import resolve
from ..draft_model import DraftModel
from ..ngram import Ngram
from .draft_sampling import DrawnChain


class InnerLoop(struct.PyTreeNode):
    """The loop's state.

    Attributes:
      own: the batch as the model sees it; its limit ends the loop.
      q: float32 [B, Q, V], the model's distributions after the root and after each emitted token.
      n: int32 [B], the place of the target's root.
      request: the options of the target's round. Sampling options read its limit and stop ids.
    """

    own: DecodeState
    q: jax.Array
    n: jax.Array
    request: Requests

    @staticmethod
    def start(
        state: DecodeState, key: jax.Array, cache: KVCache, inner, tokens: int, drafter: Drafter, model: Model
    ) -> "InnerLoop":
        """The loop before its first round.

        Args:
          state: the batch of the target's round.
          key: typed keys [B].
          cache: the model's cache.
          inner: the state of ``drafter``, the inner method.
          tokens: the number of tokens to emit after the root.
          model: the model in the target's place.
        """
        request = state.request.replace(keys=key)
        n = state.cache.length
        depth = drafter.depth
        no_stops = dict(stop_ids=jnp.full_like(request.stop_ids, -1), stops=None)
        own = state.replace(
            request=request.replace(limit=n + 1 + tokens, **no_stops),
            tokens=jnp.pad(state.tokens, ((0, 0), (0, depth))),
            cache=cache,
            drafter=inner,
            logprobs=None,
            round=jnp.int32(0),
            counters=Counters.zeros(n.size, depth),
        )
        q = jnp.zeros((n.size, tokens + depth + 1, model.config.vocab_size))
        return InnerLoop(own, q, n, request.replace(stops=None))

    def step(self, model: Model, draft, drafter: Drafter) -> "InnerLoop":
        """The loop after one round, in which ``drafter`` drafts and ``model`` verifies."""
        own = self.own
        rule = resolve("auto", drafter.drawn)
        state = own.replace(request=self.request)
        propose_key, accept_keys = round_keys(state, drafter.depth + 1)
        tree, drafted = propose(model, draft, state, propose_key, drafter=drafter)
        scored = score(model, tree, state, drafter.taps, drafted)
        p, verdict, failed = accept(model, tree, scored, state, accept_keys, rule=rule)
        on_path = jnp.take_along_axis(p, verdict.path[..., None], 1)
        q = jax.vmap(lax.dynamic_update_slice_in_dim, (0, 0, 0, None))(self.q, on_path, own.cache.length - self.n, 0)
        round = Round(tree, drafted, scored, p, verdict, failed)
        return self.replace(own=commit(model, draft, own, round, drafter=drafter), q=q)

    def run(self, model: Model, draft, drafter: Drafter) -> "InnerLoop":
        """The loop after rounds until every row has all its tokens."""
        return lax.while_loop(lambda loop: jnp.any(~loop.own.done), lambda loop: loop.step(model, draft, drafter), self)

    def tree(self, depth: int, *, read: bool) -> Tree:
        """The first ``depth`` tokens as a batched chain below the root, with their q.

        A row whose model has NaN logits has fewer. ``read``: only tokens that the model has read.
        """
        place = jnp.arange(depth + 1)
        tokens = jnp.take_along_axis(self.own.tokens, self.n[:, None] + place, 1)
        count = (self.own.cache.length - self.n)[:, None]
        valid = place < count if read else place <= count
        q = jnp.where((place < depth)[:, None], self.q[:, : depth + 1], 0)
        return jax.vmap(chain)(tokens, q, valid.at[:, 0].set(True))


@dataclasses.dataclass(frozen=True)
class InnerMethod(DrawnChain):
    """A method whose rounds run an inner loop, in which an inner method drafts; see ``inner_loop``.

    Attributes:
      num_speculative_tokens: tokens that the target tests in a round.
      inner_speculative_tokens: tokens that the model of the inner loop tests in a call. A draft
        below that model draws them. Without such a draft they are looked up in the row.
      prompt_lookup_max, prompt_lookup_min: as in ``Ngram``, for tokens that are looked up.
    """

    num_speculative_tokens: int = 5
    inner_speculative_tokens: int = 3
    prompt_lookup_max: int = 4
    prompt_lookup_min: int = 1

    def __post_init__(self):
        node_count("inner_speculative_tokens", self.inner_speculative_tokens)
        self.inner(None)
        super().__post_init__()

    def inner(self, model) -> Ngram | DraftModel:
        """The inner method: a chain of the draft ``model``, or n-grams for None."""
        if model is not None:
            return DraftModel(self.inner_speculative_tokens)
        return Ngram(self.inner_speculative_tokens, self.prompt_lookup_max, self.prompt_lookup_min)
