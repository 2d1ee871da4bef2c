"""A draft model: a smaller language model with the target's vocabulary."""

import dataclasses
from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ...checkpoints.load import LanguageModel, load
from ...errors import RequestError
from ...heads.training_forward import read_target
from ...models.config import ModelConfig
from ...models.decoder import Decoder
from .. import losses
from ..numbers import number
from .shared import Kind, Shape, with_layers


@dataclasses.dataclass(frozen=True)
class DraftShape(Shape):
    """A model of the target's family.

    Attributes:
      start: the model to continue from: an embedded name, a directory or a hub id. Without it, the
        training starts from a random model of the shape below.
      num_layers: the number of decoder layers. A shallow and wide model is fast.
      hidden_size: the width; 0 means a third of the target's.
      intermediate_size: the width of the MLPs; 0 means three times ``hidden_size``.
      head_dim: the size of a head; 0 means the target's.
      num_heads: the number of heads; 0 means as many as fill the width.
      num_kv_heads: the number of key heads; 0 means as many as heads.
    """

    start: str = ""
    num_layers: int = number(2, 1, 256)
    hidden_size: int = number(0, 0, 10**5)
    intermediate_size: int = number(0, 0, 10**6)
    head_dim: int = number(0, 0, 1024)
    num_heads: int = number(0, 0, 256)
    num_kv_heads: int = number(0, 0, 256)

    def make(self, target: LanguageModel, stream: np.ndarray, key: jax.Array) -> Decoder:
        if self.start:
            return self.load(target)
        return Decoder(self.config(target.config), key)

    def config(self, target: ModelConfig) -> ModelConfig:
        """The configuration of a random draft.

        Raises RequestError where the key heads do not divide the heads, or ``head_dim`` is odd.
        """
        D = self.head_dim or target.head_dim
        width = self.hidden_size or -(-target.hidden_size // (3 * D)) * D
        heads = self.num_heads or max(width // D, 1)
        kv_heads = self.num_kv_heads or heads
        if heads % kv_heads or D % 2:
            raise RequestError(
                f"[head] num_heads = {heads}, num_kv_heads = {kv_heads}, head_dim = {D}: key heads must divide heads, "
                "and head_dim must be even"
            )
        return with_layers(target, self.num_layers).replace(
            hidden_size=width, intermediate_size=self.intermediate_size or 3 * width, num_heads=heads,
            num_kv_heads=kv_heads, head_dim=D, tie_embeddings=True,
        )  # fmt: skip

    def load(self, target: LanguageModel) -> Decoder:
        """The model ``start`` in float32.

        Raises RequestError where its vocabulary is not the target's.
        """
        draft = load(self.start, dtype="float32")
        same_size = draft.config.vocab_size == target.config.vocab_size
        if not same_size or draft.tokenizer.get_vocab() != target.tokenizer.get_vocab():
            raise RequestError(
                f"start {self.start!r} has another vocabulary than the target; name a model of the same tokenizer"
            )
        return draft.model


@dataclasses.dataclass(frozen=True)
class DraftLoss:
    """A weighted sum of losses (DistillSpec, 2310.08461, section 3; LK losses, 2602.23881).

    Attributes:
      ce: the weight of the cross-entropy with the text.
      forward_kl, reverse_kl, tv, lk_alpha, lk_lambda: the weights of the losses of these names.
      lk_scale, lk_fall: the options of ``losses.lk_lambda``.
    """

    ce: float = 0.0
    forward_kl: float = 1.0
    reverse_kl: float = 0.0
    tv: float = 0.0
    lk_alpha: float = 0.0
    lk_lambda: float = 0.0
    lk_scale: float = 1.0
    lk_fall: float = 3.0

    def __call__(
        self,
        draft: Decoder,
        window: jax.Array,
        weight: jax.Array,
        key: jax.Array,
        target: Decoder,
        earlier: Sequence[Decoder] = (),
    ) -> jax.Array:
        """The loss, see ``Kind``.

        With ``earlier`` drafts, only tokens count that all of them miss.
        """
        # 1. The losses that have a weight.
        lk_lambda = partial(losses.lk_lambda, scale=self.lk_scale, fall=self.lk_fall)
        terms = [
            (self.forward_kl, losses.forward_kl),
            (self.reverse_kl, losses.reverse_kl),
            (self.tv, losses.total_variation),
            (self.lk_alpha, losses.lk_alpha),
            (self.lk_lambda, lk_lambda),
        ]
        terms = [(weight, loss) for weight, loss in terms if weight]
        # 2. The hidden states of both, and the places that count.
        read = window[:, :-1]
        weight = weight[:, 1:-1]
        rows = (losses.forward(draft, read).hidden, window[:, 1:])
        if terms or earlier:
            target_hidden = read_target(target, read).hidden
            rows += (target_hidden,)
            if earlier:
                weight = jnp.where(losses.missed(target, target_hidden, earlier, read), weight, 0)

        def value(hidden, label, target_hidden: jax.Array | None = None):
            q = draft.logits(hidden)
            p = q if target_hidden is None else target.logits(target_hidden)
            total = jnp.zeros(label.shape)
            if self.ce:
                total += self.ce * optax.softmax_cross_entropy_with_integer_labels(q, label)
            for weight, loss in terms:
                total += weight * loss(p, q)
            return total

        # 3. The weighted mean.
        return losses.weighted_mean(losses.map_pieces(value, draft.config.vocab_size, *rows), weight)


KIND = Kind("draft", DraftShape, DraftLoss, is_head=False)
