"""Decoding during training, to write text to train on and to measure a drafter's acceptance."""

from collections.abc import Sequence

import numpy as np
from flax import nnx

from ..checkpoints.load import LanguageModel
from ..core.stats import total
from ..heads.base import Head, HeadModule
from ..models.decoder import Decoder
from ..text.generator import Generator
from .data import Mixture
from .kinds import KINDS


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
          count: the number of windows.
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


class MeasuredAcceptance:
    """Measures the mean acceptance length of a drafter on held-out prompts.

    The decoding loop is compiled once for all parameters of the drafter.

    Args:
      target: the model that the drafter drafts for.
      kind: the kind of the drafter, see ``kinds.KINDS``.
      prompts: token ids.
      tokens: the number of new tokens for each prompt, decoded greedily.
    """

    def __init__(self, target: LanguageModel, kind: str, prompts: Sequence[list[int]], tokens: int = 64):
        self.target = target
        self.kind = KINDS[kind]
        self.prompts = list(prompts)
        self.tokens = tokens
        self.generator = None

    def __call__(self, module: HeadModule | Decoder) -> float | None:
        """The mean number of tokens for each call of the target; None without prompts."""
        if not self.prompts:
            return None
        if self.generator is None:
            draft = self.kind.wrap(module, self.target, self.kind.name)
            method = None if isinstance(draft, Head) else "draft_model"
            self.generator = Generator(self.target, method, draft)
        else:
            self.generator.update(draft=module)
        results = self.generator(self.prompts, max_new_tokens=self.tokens, ignore_eos=True)
        return total([result.stats for result in results]).mean_acceptance_length
