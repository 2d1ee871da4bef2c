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
      chosen, emitted: int32 [B, A], the rounds of each of ``Chooser.choices``, and the tokens
        that they emitted. A is 0 for a method with one length.
    """

    calls: jax.Array
    drafted: jax.Array
    accepted_at: jax.Array
    chosen: jax.Array
    emitted: jax.Array

    @staticmethod
    def zeros(batch: int, depth: int, choices: int = 0) -> "Counters":
        """Counters before the first round, for so many ``Chooser.choices``."""

        def zeros(*shape):
            return jnp.zeros((batch, *shape), jnp.int32)

        return Counters(zeros(), zeros(), zeros(depth), zeros(choices), zeros(choices))

    @property
    def acceptance_rate(self) -> jax.Array:
        """Float32 [B], accepted drafts / drafted tokens of each row so far; 1 before the first."""
        accepted = self.accepted_at.sum(1).astype(jnp.float32)
        drafted = self.drafted.astype(jnp.float32)
        return jnp.where(drafted > 0, accepted / jnp.maximum(drafted, 1), 1.0)

    def add(self, active: jax.Array, drafted: jax.Array, accepted: jax.Array) -> "Counters":
        """The counters after one more round.

        Args:
          active: bool [B], rows that were unfinished.
          drafted, accepted: int32 [B], drafted tokens of the round, and emitted ones among them.
        """
        depth = jnp.arange(self.accepted_at.shape[1])
        reached = active[:, None] & (depth < accepted[:, None])
        return self.replace(
            calls=self.calls + jnp.int32(active),
            drafted=self.drafted + jnp.where(active, drafted, 0),
            accepted_at=self.accepted_at + jnp.int32(reached),
        )

    def add_choice(self, active: jax.Array, choice: jax.Array, emitted: jax.Array) -> "Counters":
        """The counters after a round of number ``choice`` (int32) of ``Chooser.choices``.

        ``active`` is as in ``add``. ``emitted``: int32 [B], the tokens that the round emitted.
        """
        entry = active[:, None] & (jnp.arange(self.chosen.shape[1]) == choice)
        return self.replace(
            chosen=self.chosen + jnp.int32(entry), emitted=self.emitted + jnp.where(entry, emitted[:, None], 0)
        )


@dataclasses.dataclass(frozen=True)
class Choice:
    """The rounds of one arm of method "auto" in a request.

    Attributes:
      name: the arm, such as "n-grams, 4".
      rounds: the rounds in which the method chose it.
      tokens: the tokens that these rounds emitted.
      time: the time of such a round in plain rounds, as the method knows it.
    """

    name: str
    rounds: int
    tokens: int
    time: float

    def __str__(self) -> str:
        if not self.rounds:
            return f"{self.name}: no round ({self.time:.2f} times the time of a plain round)"
        each = self.tokens / self.rounds
        return (
            f"{self.name}: {self.rounds} rounds of {each:.2f} tokens in {self.time:.2f} times the time of a plain "
            f"round, so {each / self.time:.2f} times plain decoding"
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
      cached_tokens: tokens of the prompt that an earlier request of the same engine had read.
      choices: the rounds of each arm of method "auto"; empty for other methods.
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
    cached_tokens: int = 0
    choices: tuple[Choice, ...] = ()

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
        names = [f.name for f in dataclasses.fields(self) if f.name not in ("accepted_at", "choices")]
        names += ["mean_acceptance_length", "draft_acceptance_rate"]
        names += ["acceptance_rate_per_position", "tokens_per_second"]
        choices = {"choices": [dataclasses.asdict(choice) for choice in self.choices]} if self.choices else {}
        return {name: getattr(self, name) for name in names} | choices


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
    return Stats(
        target_calls=int(counters.calls[row]),
        drafted=int(counters.drafted[row]),
        accepted=sum(accepted_at),
        accepted_at=accepted_at,
        generated=generated,
        prefill_seconds=prefill,
        decode_seconds=decode,
        compile_seconds=compiling,
        lossy=lossy,
    )


def total(stats: list[Stats]) -> Stats:
    """The sums over requests that were decoded one after another."""
    names = [f.name for f in dataclasses.fields(Stats) if f.name not in ("accepted_at", "lossy", "choices")]
    added = {name: sum(getattr(s, name) for s in stats) for name in names}
    accepted_at = tuple(map(sum, zip(*(s.accepted_at for s in stats))))
    choices = tuple(map(_total_choice, zip(*(s.choices for s in stats))))
    return Stats(lossy=any(s.lossy for s in stats), accepted_at=accepted_at, choices=choices, **added)


def _total_choice(choices: tuple[Choice, ...]) -> Choice:
    """The sums of one arm over several requests, with its newest time."""
    rounds = sum(choice.rounds for choice in choices)
    tokens = sum(choice.tokens for choice in choices)
    return Choice(choices[0].name, rounds, tokens, choices[-1].time)
