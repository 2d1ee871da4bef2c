"""Counters on the device, and the statistics made from them, under the names that vLLM prints."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct


class Counters(struct.PyTreeNode):
    """Sums over the rounds in which a row was unfinished.

    Attributes:
      calls: int32 [B], forwards of the target, without the prefill.
      drafted: int32 [B], drafted tokens that the target scored.
      accepted_at: int32 [B, depth], how often a drafted token at each depth was emitted.
    """

    calls: jax.Array
    drafted: jax.Array
    accepted_at: jax.Array

    @staticmethod
    def zeros(batch: int, depth: int) -> "Counters":
        """Counters before the first round."""
        return Counters(jnp.zeros(batch, jnp.int32), jnp.zeros(batch, jnp.int32), jnp.zeros((batch, depth), jnp.int32))

    @property
    def acceptance_rate(self) -> jax.Array:
        """Float32 [B], accepted drafts / drafted tokens of each row so far; 1 before the first."""
        accepted, drafted = self.accepted_at.sum(1).astype(jnp.float32), self.drafted.astype(jnp.float32)
        return jnp.where(drafted > 0, accepted / jnp.maximum(drafted, 1), 1.0)

    def add(self, active: jax.Array, drafted: jax.Array, accepted: jax.Array) -> "Counters":
        """The counters after one more round.

        Args:
          active: bool [B], rows that were unfinished.
          drafted, accepted: int32 [B], drafted tokens of the round, and emitted ones among them.
        """
        depth = jnp.arange(self.accepted_at.shape[1])
        reached = active[:, None] & (depth < accepted[:, None])
        return Counters(
            self.calls + jnp.int32(active),
            self.drafted + jnp.where(active, drafted, 0),
            self.accepted_at + jnp.int32(reached),
        )


@dataclasses.dataclass(frozen=True)
class Stats:
    """The cost of one request.

    Times are those of the whole batch. Compilation counts in the call that compiled.

    Attributes:
      target_calls: forwards of the target, without the prefill.
      drafted, accepted: drafted tokens that the target scored, and emitted ones among them.
      accepted_at: for each depth, how often a drafted token at this depth was emitted.
      generated: new tokens.
      lossy: whether the rule changed the target's distribution.
      drafted_ahead: target calls whose tree had been drafted before the verdict on the tree before
        it, see the option ``draft_ahead``.
    """

    target_calls: int
    drafted: int
    accepted: int
    accepted_at: tuple[int, ...]
    generated: int
    prefill_seconds: float
    decode_seconds: float
    compile_seconds: float
    lossy: bool = False
    drafted_ahead: int = 0

    @property
    def mean_acceptance_length(self) -> float:
        """Emitted tokens / target calls, with the bonus tokens (vLLM; tau in the EAGLE papers)."""
        return self.generated / max(self.target_calls, 1)

    @property
    def draft_acceptance_rate(self) -> float:
        """Accepted drafts / drafted tokens."""
        return self.accepted / max(self.drafted, 1)

    @property
    def acceptance_rate_per_position(self) -> tuple[float, ...]:
        """For each depth, drafts accepted at this depth / target calls (vLLM).

        The rate is not conditional on the depth before. It therefore falls with depth.
        """
        return tuple(round(n / max(self.target_calls, 1), 4) for n in self.accepted_at)

    @property
    def tokens_per_second(self) -> float:
        """New tokens / seconds after the prefill."""
        return self.generated / self.decode_seconds if self.decode_seconds else 0.0

    def as_dict(self) -> dict:
        """All figures under their public names, for JSON."""
        names = [f.name for f in dataclasses.fields(self) if f.name != "accepted_at"]
        names += ["mean_acceptance_length", "draft_acceptance_rate"]
        names += ["acceptance_rate_per_position", "tokens_per_second"]
        return {name: getattr(self, name) for name in names}


def stats_of(
    counters: Counters, row: int, generated: int, prefill: float, decode: float, compiling: float, lossy: bool = False
) -> Stats:
    """The statistics of one row, from counters on the host.

    Args:
      generated: the number of new tokens.
      prefill, decode, compiling: seconds.
      lossy: whether the rule changes the target's distribution.
    """
    accepted_at = tuple(int(n) for n in np.asarray(counters.accepted_at[row]))
    calls, drafted, accepted = int(counters.calls[row]), int(counters.drafted[row]), sum(accepted_at)
    return Stats(calls, drafted, accepted, accepted_at, generated, prefill, decode, compiling, lossy)


def total(stats: list[Stats]) -> Stats:
    """The sums over requests that were decoded one after another."""
    names = [f.name for f in dataclasses.fields(Stats) if f.name not in ("accepted_at", "lossy")]
    added = {name: sum(getattr(s, name) for s in stats) for name in names}
    accepted_at = tuple(map(sum, zip(*(s.accepted_at for s in stats))))
    return Stats(lossy=any(s.lossy for s in stats), accepted_at=accepted_at, **added)
