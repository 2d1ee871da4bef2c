"""Text to train on, written by a model with this library's own engine, and the acceptance of what was trained."""

from collections.abc import Sequence

import numpy as np

from ..checkpoints.load import LanguageModel
from ..drafters import method_for_head
from ..generate import Generator
from ..heads import Head
from ..stats import total

_ROWS = 16
"""Prompts decoded together."""


class Writer:
    """Windows of a beginning taken from a stream and its continuation by a model. Compiles once for all parameters.

    Attributes:
      writer: the model that continues, its tokenizer the target's.
      stream: where the beginnings come from.
      length: a window holds a token more; a quarter of it is the beginning.
      temperature: at which the continuation is drawn.
    """

    def __init__(self, writer: LanguageModel, stream: np.ndarray, length: int, temperature: float = 1.0):
        self.generator = Generator(writer, "none")
        self.stream, self.length, self.temperature = stream, length, temperature

    def __call__(self, count: int, seed: int, model=None) -> np.ndarray:
        """Int32 [count, length + 1]; ``model`` takes the writer's place, with parameters of the same shapes. The same for a seed and model."""
        if model is not None:
            self.generator.session.target = _of(self.generator.target, model)
        prompt, written = max(self.length // 4, 1), []
        starts = np.random.default_rng(seed).integers(0, self.stream.size - prompt, -(-count // _ROWS) * _ROWS)
        for i in range(0, starts.size, _ROWS):
            beginnings = [self.stream[s : s + prompt].tolist() for s in starts[i : i + _ROWS]]
            seeds = [seed * starts.size + i + row for row in range(_ROWS)]
            options = dict(max_new_tokens=self.length + 1 - prompt, temperature=self.temperature, seed=seeds, ignore_eos=True)
            results = self.generator(beginnings, **options)
            written += [[*r.prompt_token_ids, *r.token_ids] for r in results]
        return np.array(written[:count], np.int32)


class Acceptance:
    """The measured mean acceptance length of a drafter in training, on prompts that are held out. Compiles once for all its parameters.

    Args:
      target: the model it drafts for.
      kind: of the drafter, see ``kinds.KINDS``.
      prompts: token ids.
      tokens: how many follow each prompt, greedily.
    """

    def __init__(self, target: LanguageModel, kind: str, prompts: Sequence[list[int]], tokens: int = 64):
        self.target, self.kind, self.prompts, self.tokens = target, kind, list(prompts), tokens
        self.method = "draft_model" if kind == "draft" else method_for_head(kind)
        self.generator = None

    def __call__(self, module) -> float | None:
        """Tokens for each call of the target; None where no prompt is given, or no method drafts with this kind."""
        if not self.prompts:
            return None
        if self.generator is None:
            draft = _of(self.target, module) if self.kind == "draft" else Head(module, module.config, self.kind)
            self.generator = Generator(self.target, self.method, draft)
        else:
            session, V = self.generator.session, self.target.config.vocab_size
            session.parameters = self.generator.drafter.parameters(module, V)
        results = self.generator(self.prompts, max_new_tokens=self.tokens, ignore_eos=True)
        return total([result.stats for result in results]).mean_acceptance_length


def _of(like: LanguageModel, model) -> LanguageModel:
    return LanguageModel(model, model.config, like.tokenizer, like.name)
