"""Decoding during training, to write text to train on."""

import numpy as np
from flax import nnx

from ..text.generator import Generator
from .data import Mixture


class Writer:
    """Writes windows: cuts beginnings from texts, and lets a model continue them.

    The decoding loop is compiled once for all parameters.

    Attributes:
      generator: decodes, with the model that writes as its target.
      mixture: the texts from which the beginnings are cut.
      length: the number of tokens in a window, less one. The beginning is a quarter of them.
      temperature: the temperature of sampling.
      rows: the number of windows that are written together.
    """

    def __init__(self, generator: Generator, mixture: Mixture, length: int, temperature: float = 1.0, rows: int = 16):
        self.generator = generator
        self.mixture = mixture
        self.length = length
        self.temperature = temperature
        self.rows = rows

    def __call__(self, count: int, seed: int, module: nnx.Module | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Windows, and masks of the tokens that a drafter learns, as ``Mixture.cut`` returns them.

        Written tokens are learnt. The windows depend only on the seed and the parameters.

        Args:
          seed: draws beginnings and continuations.
          module: the model that writes from now on, of the same shapes; None for the model so far.
        """
        if module is not None:
            self.generator.update(module)
        prompt = max(self.length // 4, 1)
        windows = []
        padded = -(-count // self.rows) * self.rows
        beginnings, learnt = self.mixture.cut(seed, 0, padded, prompt)
        for i in range(0, padded, self.rows):
            results = self.generator(
                beginnings[i : i + self.rows, :prompt].tolist(),
                max_new_tokens=self.length + 1 - prompt,
                temperature=self.temperature,
                seed=[seed * padded + i + row for row in range(self.rows)],
                ignore_eos=True,
            )
            windows += [[*result.prompt_token_ids, *result.token_ids] for result in results]
        is_learnt = np.ones((count, self.length + 2 - prompt), bool)
        return np.array(windows[:count], np.int32), np.concatenate([learnt[:count, :prompt], is_learnt], 1)
