"""The time of a round by arm, batch and context, and its correction by measured time."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from .arms import Arm
from .constants import CONSTANTS

_SIZES = 15
"""Batch sizes are corrected by powers of two, up to 2^14."""


class Times(struct.PyTreeNode):
    """The seconds of a round, or a multiple of them, for A arms.

    Speeds and scales correct a measured or a predicted table for each batch size. Batches with
    sampled rows have times of their own. All leaves are float32 arrays of the host.

    Attributes:
      table: [2, batches, contexts, A], for greedy rows and for sampled rows.
      batches, contexts: the sizes in the table, ascending.
      scale: [2, 15, A], for greedy and sampled rows and by the logarithm of the batch size; 1 for
        plain decoding.
      speed: [2, 15], the times of all arms in times of the table.
      rounds: [2, 15], the rounds that have corrected it.
      trust: the rounds that count as much as the table, see ``Constants``.
    """

    table: jax.Array | np.ndarray
    batches: jax.Array | np.ndarray
    contexts: jax.Array | np.ndarray
    scale: jax.Array | np.ndarray
    speed: jax.Array | np.ndarray
    rounds: jax.Array | np.ndarray
    trust: jax.Array | np.ndarray

    @staticmethod
    def of_table(table, batches, contexts, trust: float = CONSTANTS.predicted_rounds) -> "Times":
        """Times without a correction; a table [batches, contexts, A] holds for sampled rows too."""
        table = np.asarray(table, np.float32)
        table = np.array(np.broadcast_to(table, (2, *table.shape[-3:])))
        ones = lambda *shape: np.ones((2, _SIZES, *shape), np.float32)
        grids = np.asarray(batches, np.float32), np.asarray(contexts, np.float32)
        return Times(table, *grids, ones(table.shape[-1]), ones(), 0 * ones(), np.array(trust, np.float32))

    def at(self, batch: int, context, sampled=False, xp: Any = jnp) -> Any:
        """Float32 [A], the time of a round with ``batch`` rows, the longest of ``context`` tokens.

        The table is linear in the context and in the batch between its sizes. Beyond them it is
        constant, but for larger batches, where it rises as between the two largest.

        Args:
          sampled: bool, whether any row has a temperature above 0.
          xp: jnp, or np on the host, which is a hundred times faster there for so few numbers.
        """
        here = xp.int32(sampled), _size(batch)
        rows, columns = _weights(self.batches, batch, xp), _weights(self.contexts, context, xp)
        table = xp.einsum("c,bca->ba", columns, xp.asarray(self.table)[here[0]])
        seconds = rows @ table
        if len(table) > 1:
            before, last = xp.asarray(self.batches)[-2:]
            beyond = xp.maximum(xp.float32(batch) - last, 0) / (last - before)
            seconds += beyond * xp.maximum(table[-1] - table[-2], 0)
        return seconds * xp.asarray(self.scale)[here] * xp.asarray(self.speed)[here]

    def correct(self, rounds: np.ndarray, batch: int, context: int, seconds: float, sampled: bool = False) -> "Times":
        """The times after a run of ``rounds`` [A] rounds of each arm in ``seconds``, on the host.

        The error of the foretold time is shared out. The machine's speed, which changes often,
        takes it first from plain rounds. An arm takes it by its share of the time, and the more
        slowly the more the table is trusted. Choices depend on the scales alone.
        """
        here = (int(sampled), _size(batch))
        n = rounds.sum()
        foretold = rounds * self.at(batch, context, sampled, np)
        share = foretold / foretold.sum()
        error = np.log(seconds / foretold.sum())
        of_speed = 1 - (1 - CONSTANTS.speed * share[0] - CONSTANTS.least_speed) ** n
        of_arms = 1 - (1 - share[1:] / self.trust) ** min(n, CONSTANTS.most_rounds)
        if not self.rounds[here]:  # the first run sets the speed
            of_speed = 1.0
            of_arms = 0.0
        scale = np.array(self.scale)
        speed = np.array(self.speed)
        count = np.array(self.rounds)
        speed[here] *= np.exp(of_speed * error)
        scale[here][1:] = scale[here][1:] ** CONSTANTS.scale_memory**n * np.exp(of_arms * np.clip(error, -1, 1))
        count[here] += n
        return self.replace(scale=scale, speed=speed, rounds=count)


def predict(arms: Sequence[Arm], draft_cost: float, platform: str) -> Times:
    """Predicted times, in plain rounds at batch 1.

    A round reads all weights once, and every scored token adds arithmetic: 1 + c (n - 1) for n
    tokens (Williams et al. 2009, the roofline model, with a sum in place of the maximum). A step of
    the draft costs ``draft_cost`` times as much as a plain round, see ``Switch``.

    Args:
      draft_cost: time to draft a token with the model, in plain target calls.
      platform: the platform of the device, such as "cpu".
    """
    cost = CONSTANTS.cpu_token if platform == "cpu" else CONSTANTS.other_token
    batches = 2 ** np.arange(_SIZES)
    pass_of = lambda tokens: 1 + cost * (tokens - 1)
    drafting = lambda arm: draft_cost * arm.length * pass_of(batches * (arm.top_k if arm.nodes else 1))
    of_arm = lambda arm: pass_of(batches * ((arm.nodes or arm.length) + 1)) + (drafting(arm) if arm.model else 0)
    return Times.of_table(np.stack([*map(of_arm, arms)], -1)[:, None], batches, [1])


def _weights(sizes, size, xp):
    """The weights of linear interpolation between ``sizes`` at ``size``, float32 [n]."""
    sizes = xp.asarray(sizes)
    # A sum of ramps, because jnp.interp loops on the device.
    at = xp.clip((xp.float32(size) - sizes[:-1]) / (sizes[1:] - sizes[:-1]), 0, 1).sum()
    return xp.maximum(1 - xp.abs(xp.arange(len(sizes), dtype=xp.float32) - at), 0)


def _size(batch: int) -> int:
    return min((batch - 1).bit_length(), _SIZES - 1)
