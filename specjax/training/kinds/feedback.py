"""A draft model that learns from the log of its verified rounds."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ...checkpoints.load import LanguageModel
from ...errors import RequestError
from ...models.decoder import Decoder
from .. import losses
from ..feedback.windows import FeedbackBatch, LoggedWindows
from ..numbers import number
from .draft import DraftLoss, DraftShape
from .shared import Kind, Shape

_OBJECTIVES = ("distill", "pseudo", "policy")
"""The objectives on a log."""

_POSITIONS = ("rejected", "all")
"""The places that an objective reads."""


@dataclasses.dataclass(frozen=True)
class FeedbackShape(Shape):
    """A draft model that exists.

    Attributes:
      start: the model to continue from: an embedded name, a directory or a hub id.
    """

    start: str = ""

    def make(self, target: LanguageModel, stream: np.ndarray, key: jax.Array) -> Decoder:
        """The model ``start`` in float32.

        Raises RequestError where there is none, or where its vocabulary is not the target's.
        """
        if not self.start:
            raise RequestError("kind 'feedback' continues a draft; name it with --draft, or as start in [head]")
        return DraftShape(start=self.start).load(target)


@dataclasses.dataclass(frozen=True)
class FeedbackLoss:
    """An objective on the log, and forward KL to the target on replayed text.

    Attributes:
      objective: "distill", the KL from the target's likeliest tokens (Online Speculative Decoding,
        2310.07177, section 3); "pseudo", the cross-entropy with the token that the target put in
        place; "policy", PPO's clipped surrogate (1707.06347, equation 7), whose reward is the
        accepted length.
      positions: the places that "distill" and "pseudo" read: "rejected", those of rejected tokens,
        or "all", every token of the answers.
      clip: PPO's epsilon.
      replay: the share of the windows of a batch, and the weight of their loss, that comes from the
        data instead of the log. It keeps the draft from forgetting.
    """

    objective: str = "distill"
    positions: str = "all"
    clip: float = number(0.2, 0.0, 1.0)
    replay: float = number(0.25, 0.0, 0.9)

    def __post_init__(self):
        for name, known in (("objective", _OBJECTIVES), ("positions", _POSITIONS)):
            if getattr(self, name) not in known:
                raise RequestError(f"{name} {getattr(self, name)!r} is unknown; use {' or '.join(known)}")

    def replayed(self, batch: int) -> int:
        """The number of replayed windows among ``batch``: at least one if there are any."""
        return min(max(round(self.replay * batch), 1), batch - 1) if self.replay else 0

    def __call__(self, draft: Decoder, batch: FeedbackBatch, key: jax.Array, target: Decoder) -> jax.Array:
        value = self.of_log(draft, batch.logged)
        if batch.replay is None:
            return value
        window = jnp.asarray(batch.replay[0])
        learnt = jnp.asarray(batch.replay[1], jnp.float32)
        return (1 - self.replay) * value + self.replay * DraftLoss()(draft, window, learnt, key, target)

    def of_log(self, draft: Decoder, logged: LoggedWindows) -> jax.Array:
        """The mean of the objective over the places that it reads."""
        hidden = losses.forward(draft, jnp.asarray(logged.tokens)).hidden
        label, rejected, action = map(jnp.asarray, (logged.label, logged.rejected, logged.action))
        if self.objective == "policy":
            read = action >= 0
            token = jnp.maximum(action, 0)
        else:
            read = rejected if self.positions == "rejected" else label >= 0
            token = jnp.maximum(label, 0)

        def value(hidden, token, top_ids, top, old, advantage, temperature):
            q = draft.logits(hidden)
            if self.objective == "distill":
                return losses.top_kl(top_ids, top, q)
            if self.objective == "pseudo":
                return optax.softmax_cross_entropy_with_integer_labels(q, token)
            return losses.clipped_surrogate(q / temperature[..., None], token, old, advantage, self.clip)

        others = (logged.top_ids, logged.top, logged.old, logged.advantage, logged.temperature)
        values = losses.map_pieces(value, draft.config.vocab_size, hidden, token, *map(jnp.asarray, others))
        return losses.weighted_mean(values, read)


KIND = Kind(
    "feedback",
    FeedbackShape,
    FeedbackLoss,
    is_head=False,
    reads_log=True,
    # Muon, or a higher rate, forgets more of the original text in a few steps.
    optimizer={"name": "adamw", "rate": 1e-3, "warmup": 10},
)
