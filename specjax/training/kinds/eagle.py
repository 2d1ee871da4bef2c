"""EAGLE-1 and 2 (2401.15077): a head that predicts the target's next feature."""

import dataclasses

import jax
import numpy as np
import optax

from ...checkpoints.load import LanguageModel
from ...heads import EagleConfig, EagleHead
from ...heads.training_forward import read_target, unroll
from ...models.decoder import Decoder
from ..losses import map_pieces, soft_cross_entropy, weighted_mean
from ..numbers import number
from .shared import Kind, Shape, copy_layers, with_layers


@dataclasses.dataclass(frozen=True)
class EagleShape(Shape):
    """A random head.

    Attributes:
      num_layers: the number of decoder layers. They have the shapes of the target's layers.
      bias: see ``EagleConfig``.
      from_target: True to start with copies of the target's last layers, where the shapes agree.
    """

    num_layers: int = number(1, 1, 256)
    bias: bool = True
    from_target: bool = False

    def make(self, target: LanguageModel, stream: np.ndarray, key: jax.Array) -> EagleHead:
        layers = with_layers(target.config, self.num_layers)
        head = EagleHead(EagleConfig(layers, target.config.num_layers, self.bias), key)
        if self.from_target:
            copy_layers(head, target.model)
        return head


@dataclasses.dataclass(frozen=True)
class EagleLoss:
    """A distance of hidden states plus a cross-entropy (EAGLE, 2401.15077, section 3.3).

    The distance is between the head's hidden state and the target's next feature. The cross-entropy
    is between their logits, both computed by the target's output matrix.

    Attributes:
      feature: the weight of the smooth L1 distance, a mean over the width.
      token: the weight of the cross-entropy.
      noise: the width of the uniform noise on features, in windows of 512 tokens. In other windows
        it is inversely proportional to their length.
    """

    feature: float = 1.0
    token: float = 0.1
    noise: float = 0.2

    def __call__(
        self, head: EagleHead, window: jax.Array, weight: jax.Array, key: jax.Array, target: Decoder
    ) -> jax.Array:
        features = head.fuse(target, read_target(target, window, head.config.taps).taps)
        S = window.shape[1] - 1
        noise = (jax.random.uniform(key, features[:, :-1].shape) - 0.5) * (self.noise * 512 / S)
        ((_, hidden),) = unroll(head, target, features[:, :-1] + noise, window[:, 1:], 1)
        weight = weight[:, 2:]  # Row i predicts the feature that predicts token i + 2.
        distance = weighted_mean(optax.huber_loss(hidden, features[:, 1:]).mean(-1), weight)

        def value(hidden: jax.Array, feature: jax.Array) -> jax.Array:
            return soft_cross_entropy(target.logits(feature), target.logits(hidden))

        entropy = weighted_mean(map_pieces(value, head.config.vocab_size, hidden, features[:, 1:]), weight)
        return self.feature * distance + self.token * entropy


KIND = Kind("eagle", EagleShape, EagleLoss)
