"""The draft model's acceptance rate over the requests so far, for ``Auto``.

It is the first guess for a new request.
"""

import jax
import numpy as np
from flax import struct

from .constants import CONSTANTS


class Experience(struct.PyTreeNode):
    """The tests of the model's tokens, apart for greedy and for sampled rows.

    Attributes:
      accepted, tested: float32 [2], of greedy and of sampled rows. All leaves are arrays of the
        host.
    """

    accepted: jax.Array | np.ndarray
    tested: jax.Array | np.ndarray

    @staticmethod
    def start() -> "Experience":
        """The experience before the first request."""
        tested = CONSTANTS.first_tests
        return Experience(np.full(2, CONSTANTS.first_rate * tested, np.float32), np.full(2, tested, np.float32))

    @property
    def rate(self):
        """Float32 [2], the acceptance rate of greedy and of sampled rows."""
        return self.accepted / self.tested

    def after(self, tests: np.ndarray) -> "Experience":
        """The experience after more tests [2, 2].

        They are the accepted and the tested tokens of greedy and of sampled rows.
        """
        accepted = self.accepted + tests[:, 0]
        tested = self.tested + tests[:, 1]
        weight = np.minimum(CONSTANTS.most_tests / tested, 1)
        return Experience((weight * accepted).astype(np.float32), (weight * tested).astype(np.float32))
