"""The draft model's acceptance rate over the requests so far: the first guess for a new one, for ``Auto``."""

import jax
import numpy as np
from flax import struct

_FIRST, _TESTED = 0.7, 64.0
"""The acceptance rate before the first request, and the tests that it counts as much as."""

_MOST = 1024.0
"""The tests that all earlier requests count as much as. The newest ones weigh most."""


class Experience(struct.PyTreeNode):
    """The tests of the model's tokens, apart for greedy and for sampled rows.

    Attributes:
      accepted, tested: float32 [2], of greedy and of sampled rows. All leaves are arrays of the host.
    """

    accepted: jax.Array | np.ndarray
    tested: jax.Array | np.ndarray

    @staticmethod
    def start() -> "Experience":
        """The experience before the first request."""
        return Experience(np.full(2, _FIRST * _TESTED, np.float32), np.full(2, _TESTED, np.float32))

    @property
    def rate(self):
        """Float32 [2], the acceptance rate of greedy and of sampled rows."""
        return self.accepted / self.tested

    def after(self, tests: np.ndarray) -> "Experience":
        """The experience after more tests, [2, 2]: for greedy and sampled rows the accepted and the tested tokens."""
        accepted, tested = self.accepted + tests[:, 0], self.tested + tests[:, 1]
        kept = np.minimum(_MOST / tested, 1)
        return Experience((kept * accepted).astype(np.float32), (kept * tested).astype(np.float32))
