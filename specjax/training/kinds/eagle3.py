"""EAGLE-3 (2503.01840) and P-EAGLE (2602.01469): training-time test over a draft vocabulary."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ...checkpoints.heads import load_drafter
from ...checkpoints.load import LanguageModel
from ...errors import RequestError
from ...heads import Eagle3Config, Eagle3Head, Head
from ...heads.training_forward import read_target, unroll
from ...models.decoder import Decoder
from ..frequency import most_frequent
from ..losses import map_pieces, weighted_mean
from ..numbers import number
from ..online.feature_windows import RecordedWindow
from .divergence import Divergence
from .shared import Kind, Shape, check_taps, copy_layers, norm_weight, output_matrix, spare_token, with_layers

_MOST_DRAFTED = 32000
"""The size of the draft vocabulary in the paper, and the default for larger vocabularies."""


@dataclasses.dataclass(frozen=True)
class Eagle3Shape(Shape):
    """A head of EAGLE-3, 3.1 or P-EAGLE.

    The output matrix starts as the target's rows for the draft vocabulary. The final norm starts as
    a copy of the target's. With ``start`` the training continues a head, whose shape stays.

    Attributes:
      start: the head to continue from: an embedded name, a directory or a hub id.
      num_layers, from_target: as in ``EagleShape``.
      draft_vocab_size: the size of the draft vocabulary, which has the most frequent tokens of the
        data. 0 stands for the whole vocabulary, but at most 32000 tokens.
      taps: the layers whose inputs the head reads; by default those of the paper.
      norm_before_residual, fc_norm, norm_before_fc, norm_output: see ``Eagle3Config``.
      parallel: True for a head that drafts in one pass (P-EAGLE). Its mask is the ``spare_token``.
    """

    start: str = ""
    num_layers: int = number(1, 1, 256)
    draft_vocab_size: int = 0
    taps: tuple[int, ...] = ()
    norm_before_residual: bool = False
    fc_norm: bool = False
    norm_before_fc: bool = False
    norm_output: bool = False
    parallel: bool = False
    from_target: bool = False

    def reach(self, loss) -> int:
        return loss.steps

    def make(self, target: LanguageModel, stream: np.ndarray, key: jax.Array) -> Eagle3Head:
        if self.start:
            return load_eagle3(self.start, target)
        L = target.config.num_layers
        V = target.config.vocab_size
        taps = self.taps or tuple(sorted({min(2, L), L // 2, max(L - 3, 0)}))
        check_taps(taps, L)
        if not 0 <= self.draft_vocab_size <= V:
            raise RequestError(
                f"draft_vocab_size {self.draft_vocab_size} does not fit the target, whose vocabulary has {V} tokens; "
                f"use a number from 0 to {V}"
            )
        config = Eagle3Config(
            with_layers(target.config, self.num_layers), target.config.hidden_size, L, taps,
            self.draft_vocab_size or min(V, _MOST_DRAFTED), norm_before_residual=self.norm_before_residual,
            fc_norm=self.fc_norm, norm_before_fc=self.norm_before_fc, norm_output=self.norm_output,
            mask_token=spare_token(target) if self.parallel else None,
        )  # fmt: skip
        head = Eagle3Head(config, key)
        known = most_frequent(stream, config.draft_vocab_size, V)
        head.draft_to_target[...] = jnp.asarray(known - np.arange(known.size), jnp.int32)
        head.head[...] = output_matrix(target.model)[known]
        head.norm[...] = norm_weight(target.model)
        if self.from_target:
            copy_layers(head, target.model)
        return head


def load_eagle3(start: str, target: LanguageModel) -> Eagle3Head:
    """The head ``start`` in float32. Raises RequestError where it is no EAGLE-3 head."""
    head = load_drafter(start, target, "float32")
    if not isinstance(head, Head) or not isinstance(head.module, Eagle3Head):
        raise RequestError(f"start {start!r} is no head of kind 'eagle3'; name an EAGLE-3 head")
    return head.module


@dataclasses.dataclass(frozen=True)
class Eagle3Loss(Divergence):
    """Training-time test (EAGLE-3, 2503.01840, section 3.2).

    The head continues from its own hidden states, as it does when it drafts. The loss of a step is
    a ``Divergence`` from the target's distribution over the draft vocabulary. By default it is the
    forward KL: the paper's cross-entropy less the target's entropy, which no weight changes. A row
    counts if the target's likeliest token is in the draft vocabulary. A token of the text that is
    not there has no cross-entropy.

    A P-EAGLE head reads masks in all steps but the first. Here every step keeps all rows; in the
    P-EAGLE paper, later steps keep fewer rows.

    Attributes:
      steps: the number of tokens that the head predicts in each row.
      decay: the weight of a step relative to the step before it.
    """

    steps: int = number(7, 1, 64)
    decay: float = number(0.8, 0, 1.0)

    def __call__(self, head: Eagle3Head, window: Any, weight: jax.Array, key: jax.Array, target: Decoder) -> jax.Array:
        """The mean loss, see ``Kind``. ``window`` may be a ``RecordedWindow`` with features."""
        if isinstance(window, RecordedWindow):
            taps, hidden = (jnp.asarray(x, jnp.float32) for x in (window.taps, window.hidden))
            taps = tuple(jnp.moveaxis(taps, 2, 0))
            return self.of_features(head, target, jnp.asarray(window.tokens), taps, hidden, weight)
        out = read_target(target, window, head.config.taps)
        return self.of_features(head, target, window, out.taps, out.hidden, weight)

    def of_features(
        self,
        head: Eagle3Head,
        target: Decoder,
        window: jax.Array,
        taps: tuple,
        hidden: jax.Array,
        weight: jax.Array,
    ) -> jax.Array:
        """The loss from the target's ``taps`` and ``hidden`` states of windows, [B, S + 1, E]."""
        config = head.config
        N = window.shape[1] - self.steps
        known = jnp.arange(config.draft_vocab_size) + head.draft_to_target[...]
        drafted = jnp.zeros(config.vocab_size, bool).at[known].set(True)
        p = jax.lax.stop_gradient(target.logits(hidden[:, 1:]))  # Row i predicts token i + 2.
        weight = jnp.where(drafted[p.argmax(-1)], weight[:, 2:], 0)
        p = p[..., known]
        place = jnp.full(config.vocab_size, -1).at[known].set(jnp.arange(config.draft_vocab_size))
        label = jnp.pad(place[window[:, 2:]], ((0, 0), (0, 1)), constant_values=-1)  # The last is unknown.

        def value(hidden: jax.Array, p: jax.Array, label: jax.Array) -> jax.Array:
            return self.of_logits(p, head.draft_logits(hidden), label)

        total = jnp.float32(0)
        features = head.fuse(target, taps)[:, :N]
        for s, (_, hidden) in enumerate(unroll(head, target, features, window[:, 1:], self.steps)):
            values = map_pieces(value, config.draft_vocab_size, hidden, p[:, s : s + N], label[:, s : s + N])
            total += self.decay**s * weighted_mean(values, weight[:, s : s + N])
        return total


KIND = Kind("eagle3", Eagle3Shape, Eagle3Loss, keeps_features=True)
