"""Medusa (2401.10774): heads that read one hidden state, each for a token further on."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ...checkpoints.load import LanguageModel
from ...heads import HydraHeads, MedusaConfig, MedusaHeads
from ...heads.training_forward import read_target, unroll
from ...models.decoder import Decoder
from ..losses import cross_entropy, map_pieces, weighted_mean
from ..numbers import number
from .shared import Kind, Shape, output_matrix


@dataclasses.dataclass(frozen=True)
class MedusaShape(Shape):
    """The shape of Medusa heads.

    In an untrained head, the blocks add nothing, and the output matrix is the target's.

    Attributes:
      num_heads, num_layers: see ``MedusaConfig``.
    """

    num_heads: int = number(5, 1, 256)
    num_layers: int = number(1, 1, 256)

    def make(self, target: LanguageModel, stream: np.ndarray, key: jax.Array) -> MedusaHeads:
        heads = MedusaHeads(MedusaConfig(**self.sizes(target)), key)
        copy_output(heads, target.model)
        return heads

    def reach(self, loss) -> int:
        return self.num_heads

    def sizes(self, target: LanguageModel) -> dict[str, Any]:
        """The fields that the configurations of Medusa and Hydra share."""
        config = target.config
        return dict(
            target_size=config.hidden_size, target_layers=config.num_layers, vocab_size=config.vocab_size,
            num_heads=self.num_heads, num_layers=self.num_layers,
        )  # fmt: skip


def copy_output(heads: MedusaHeads | HydraHeads, target: Decoder) -> None:
    """Copies the target's output matrix into each head."""
    for head in heads.heads:
        head.head[...] = output_matrix(target)


@dataclasses.dataclass(frozen=True)
class MedusaLoss:
    """The weighted cross-entropies of the heads (Medusa, 2401.10774, section 2.2.1).

    From the hidden state of token i, head k predicts token i + k + 2. Its weight is ``decay`` to
    the power of k. A head of Hydra also reads the true tokens from i + 1 to i + k + 1 (2402.05109,
    section 3). In Hydra++ it reads the prefix layer's output instead of the hidden state.

    Attributes:
      decay: the weight of a head relative to the head before it.
      teacher: the weight of the target's distribution in the cross-entropy. The weight of the text
        is 1 - ``teacher`` (Hydra++, section 4).
    """

    decay: float = number(0.8, 0, 1.0)
    teacher: float = number(0.0, 0, 1.0)

    def __call__(
        self, head: MedusaHeads | HydraHeads, window: jax.Array, weight: jax.Array, key: jax.Array, target: Decoder
    ) -> jax.Array:
        config = head.config
        N = window.shape[1] - 1 - config.num_heads  # the rows in which every head predicts a token of the window
        out = read_target(target, window[:, :-1], config.taps)
        ((_, hidden),) = unroll(head, target, head.fuse(target, out.taps)[:, :N], window[:, 1:], 1)
        total = jnp.float32(0)
        for k in range(config.num_heads):
            label = window[:, k + 2 :][:, :N]
            target_hidden = out.hidden[:, k + 1 :][:, :N]
            rows = (hidden, label, target_hidden)
            if config.reads_tokens:
                rows += (jnp.stack([window[:, j : j + N] for j in range(1, k + 2)], -1),)

            def value(hidden, label, target_hidden, read: Any = None, k=k):
                return cross_entropy(head.logits(target, k, hidden, read), label, target, target_hidden, self.teacher)

            values = map_pieces(value, config.vocab_size, *rows)
            total += self.decay**k * weighted_mean(values, weight[:, k + 2 :][:, :N])
        return total


KIND = Kind("medusa", MedusaShape, MedusaLoss)
