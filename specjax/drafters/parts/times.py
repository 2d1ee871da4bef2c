"""The time of a round as a function of arm, batch and context, and its correction by measured time."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

_CLASSES = 15
"""Batch sizes are corrected by powers of two, up to 2^14."""

_MEMORY = 0.999
"""The factor by which each round reduces the weight of all earlier rounds."""

PREDICTED, MEASURED = 0.5, 10.0
"""The weights of a predicted and of a measured table, in rounds, against the times of runs."""

ROW_COST = {"cpu": 1 / 12}
"""The time that a scored token adds to a round of plain decoding at batch 1, by platform."""

_OTHER_ROW_COST = 1 / 200


class Times(struct.PyTreeNode):
    """The seconds of a round, or a multiple of them, for A arms.

    A table is measured by ``specjax tune --auto``, or predicted. A scale for each batch size and arm
    corrects it. All leaves are float32 arrays of the host.

    Attributes:
      table: [batches, contexts, A].
      batches, contexts: the sizes in the table, ascending.
      scale: [15, A], by the logarithm of the batch size.
      squares, sums, rounds: [15, A, A], [15, A] and [15], the decayed sums of ``correct``.
      trust: the weight of the table, ``PREDICTED`` or ``MEASURED``.
    """

    table: jax.Array | np.ndarray
    batches: jax.Array | np.ndarray
    contexts: jax.Array | np.ndarray
    scale: jax.Array | np.ndarray
    squares: jax.Array | np.ndarray
    sums: jax.Array | np.ndarray
    rounds: jax.Array | np.ndarray
    trust: jax.Array | np.ndarray

    @staticmethod
    def of_table(table, batches, contexts, trust: float = PREDICTED) -> "Times":
        """Times without a correction."""
        table = np.asarray(table, np.float32)
        arms = table.shape[-1]
        new = lambda make, *shape: make((_CLASSES, *shape), np.float32)
        grids = np.asarray(batches, np.float32), np.asarray(contexts, np.float32)
        sums = new(np.zeros, arms, arms), new(np.zeros, arms), new(np.zeros)
        return Times(table, *grids, new(np.ones, arms), *sums, np.array(trust, np.float32))

    def at(self, batch: int, context) -> jax.Array:
        """Float32 [A], the time of a round with ``batch`` rows, the longest of ``context`` tokens.

        The table is linear in the context and in the batch between its sizes, and constant beyond.
        """
        return self._table_at(batch, context, jnp) * jnp.asarray(self.scale)[_class(batch)]

    def _table_at(self, batch: int, context, xp):
        """The times of the table alone, [A]. ``xp`` is jnp, or np on the host, which is faster for few numbers."""
        rows, columns = _weights(self.batches, batch, xp), _weights(self.contexts, context, xp)
        return xp.einsum("b,c,bca->a", rows, columns, xp.asarray(self.table))

    def correct(self, rounds: np.ndarray, batch: int, context: int, seconds: float) -> "Times":
        """The times after a run of ``rounds`` [A] rounds of each arm in ``seconds``, on the host.

        The scales s solve a ridge regression: the sum over runs of n (shares . s - 1)^2 is least, where
        n is the number of a run's rounds, and the shares of a run are the times that the table gives
        them, divided by the run's seconds. The ridge is as strong as ``trust`` rounds. It draws all
        scales to one, so arms that have not run keep the scale of the others.
        """
        shares, k = rounds * self._table_at(batch, context, np) / seconds, _class(batch)
        n, arms = rounds.sum(), len(shares)
        squares, sums, count = np.array(self.squares), np.array(self.sums), np.array(self.rounds)
        squares[k] = _MEMORY**n * squares[k] + n * np.outer(shares, shares)
        sums[k] = _MEMORY**n * sums[k] + n * shares
        count[k] = _MEMORY**n * count[k] + n
        mean = sums[k].sum() / max(squares[k].sum(), 1e-30)
        ridge = self.trust * max(squares[k].trace(), 1e-30) / count[k]
        scale = np.array(self.scale)
        solved = np.linalg.solve(squares[k] + ridge * np.eye(arms), sums[k] + ridge * mean)
        scale[k] = np.clip(solved, mean / 4, mean * 4)
        return self.replace(scale=scale, squares=squares, sums=sums, rounds=count)


def predict(arms: list[tuple[int, bool]], draft_cost: float, platform: str) -> Times:
    """Predicted times, in plain rounds at batch 1.

    A round reads all weights once, and every scored token adds arithmetic: 1 + c (n - 1) for n
    tokens (Williams et al. 2009, the roofline model, with a sum in place of the maximum). A step of
    the draft costs ``draft_cost`` times as much as a plain round, see ``Switch``.

    Args:
      arms: the length of each arm, and whether the draft model drafts in it.
      draft_cost: time to draft a token with the model, in plain target calls.
      platform: the platform of the device, such as "cpu".
    """
    cost = ROW_COST.get(platform, _OTHER_ROW_COST)
    batches = 2 ** np.arange(_CLASSES)
    pass_of = lambda tokens: 1 + cost * (tokens - 1)
    of_arm = lambda length, drafts: pass_of(batches * (length + 1)) + drafts * length * draft_cost * pass_of(batches)
    return Times.of_table(np.stack([of_arm(*arm) for arm in arms], -1)[:, None], batches, [1])


def _weights(sizes, size, xp):
    """The weights of linear interpolation between ``sizes`` at ``size``, float32 [n]."""
    sizes = xp.asarray(sizes)
    # A sum of ramps, because jnp.interp loops on the device.
    at = xp.clip((xp.float32(size) - sizes[:-1]) / (sizes[1:] - sizes[:-1]), 0, 1).sum()
    return xp.maximum(1 - xp.abs(xp.arange(len(sizes), dtype=xp.float32) - at), 0)


def _class(batch: int) -> int:
    return min((batch - 1).bit_length(), _CLASSES - 1)
