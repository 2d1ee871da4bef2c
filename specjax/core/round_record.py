"""The newest rounds of a batch, recorded on the device. They show how well a draft predicts.

Only chains are recorded. The text of a row gives the context of a round: its root is at ``place``.
"""

import dataclasses

import jax
import jax.numpy as jnp
from flax import struct

from .checks import whole
from .selection import likeliest
from .tree import Tree
from .verdict import Verdict

MOST_ROUNDS = 4096
MOST_TOP = 64


@dataclasses.dataclass(frozen=True)
class Recording:
    """The size of the record of a row.

    Attributes:
      rounds: the number of rounds that the buffer holds. A further round overwrites the oldest.
      top: the number of likeliest tokens of the target that are recorded at each place.
    """

    rounds: int = 128
    top: int = 8

    def __post_init__(self):
        whole("rounds", self.rounds, 1, MOST_ROUNDS)
        whole("top", self.top, 1, MOST_TOP)

    def make_empty(self, B: int, depth: int, taps: int, config) -> "Rounds":
        """An empty record of B rows, for chains of at most ``depth`` tokens.

        ``taps`` is not read. ``config`` is the target's, with ``vocab_size``.
        """
        R = self.rounds
        D = depth
        K = min(self.top, config.vocab_size)

        def zeros(*shape, dtype=jnp.int32):
            return jnp.zeros((B, *shape), dtype)

        return Rounds(
            count=zeros(),
            place=zeros(R),
            drafted=zeros(R, D),
            draft=zeros(R, D, dtype=jnp.float32),
            accepted=zeros(R),
            correction=zeros(R),
            top_ids=zeros(R, D + 1, K),
            top=zeros(R, D + 1, K, dtype=jnp.float32),
        )


class Rounds(struct.PyTreeNode):
    """The newest R rounds of B rows, for chains of at most D tokens.

    Round i of a row, counted from 0, is in slot i % R. All probabilities are logarithms.

    Attributes:
      count: int32 [B], the rounds since the buffer was emptied. Those beyond R overwrote others.
      place: int32 [B, R], the place of the root in the row's text.
      drafted: int32 [B, R, D], the drafted tokens, then -1.
      draft: float32 [B, R, D], the probability with which the draft drew each of them, under the
        sampling options; 0 after the last.
      accepted: int32 [B, R], the number of tokens that the rule accepted. The row's end may cut
        them.
      correction: int32 [B, R], the token that the target drew after them.
      top_ids, top: int32 and float32 [B, R, D + 1, K], the target's likeliest tokens after the root
        and after each drafted token, and their probabilities before any sampling option. Entries
        after ``accepted`` are void: they follow a rejected token.
    """

    count: jax.Array
    place: jax.Array
    drafted: jax.Array
    draft: jax.Array
    accepted: jax.Array
    correction: jax.Array
    top_ids: jax.Array
    top: jax.Array

    def add(self, tree: Tree, scored, verdict: Verdict, place: jax.Array, active: jax.Array) -> "Rounds":
        """The record with one more round of the rows that are ``active``, bool [B].

        Args:
          tree: a batched chain with q.
          scored: the target's output for every node, with its logits before any option is applied.
          verdict: the rule's verdict, before it is cut at the row's end.
          place: int32 [B], the place of the root.
        """
        assert tree.is_chain and tree.q is not None  # ``text.feedback_log.check_method`` refuses other methods
        R = self.place.shape[1]
        longest = self.drafted.shape[2]

        def fill(x, size):
            return jnp.pad(x, [(0, 0), (0, size - x.shape[1])] + [(0, 0)] * (x.ndim - 2))

        token = tree.tokens[:, 1:]
        is_drafted = jnp.cumprod(tree.valid[:, 1:], 1) > 0
        q = jnp.take_along_axis(tree.q[:, :-1], token[..., None], 2)[..., 0]
        logits = scored.logits.astype(jnp.float32)
        top, top_ids = likeliest(logits, self.top.shape[3])
        new = (
            place,
            fill(jnp.where(is_drafted, token, -1) + 1, longest) - 1,  # -1 after the end of shorter chains, too
            fill(jnp.log(jnp.where(is_drafted, q, 1.0)), longest),
            verdict.length - 1,
            verdict.bonus,
            fill(top_ids, longest + 1),
            fill(top - jax.nn.logsumexp(logits, -1, keepdims=True), longest + 1),
        )
        slot = jnp.where(active, self.count % R, R)  # R is outside of the buffer: the round is dropped
        put = jax.vmap(lambda buffer, value, at: buffer.at[at].set(value, mode="drop"))
        old = self.place, self.drafted, self.draft, self.accepted, self.correction, self.top_ids, self.top
        return Rounds(self.count + jnp.int32(active), *(put(*pair, slot) for pair in zip(old, new)))
