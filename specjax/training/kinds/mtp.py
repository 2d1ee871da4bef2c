"""Multi-token prediction (DeepSeek-V3, 2412.19437): modules that follow one another."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from ...checkpoints.load import LanguageModel
from ...errors import RequestError
from ...heads import MtpConfig, MtpHead
from ...heads.training_forward import read_target, unroll
from ...models.decoder import Decoder
from ..losses import cross_entropy, map_pieces, weighted_mean
from ..numbers import number
from .shared import Kind, Shape, copy_layers, norm_weight, with_layers


@dataclasses.dataclass(frozen=True)
class MtpShape(Shape):
    """Random modules.

    They use the target's output matrix. Their final norms start as copies of the target's.

    Attributes:
      modules: the number of modules. Module k predicts the k-th drafted token; later tokens use the
        last module again.
      num_layers, from_target: as in ``EagleShape``, for each module.
      normed_features, norm_output, hidden_first: see ``MtpConfig``.
    """

    modules: int = number(1, 1, 64)
    num_layers: int = number(1, 1, 256)
    normed_features: bool = True
    norm_output: bool = False
    hidden_first: bool = False
    from_target: bool = False

    def __post_init__(self):
        if self.modules > 1 and self.num_layers > 1:
            raise RequestError(
                f"no checkpoint holds {self.modules} modules of {self.num_layers} layers; "
                "train one module, or num_layers = 1"
            )

    def reach(self, loss) -> int:
        return loss.steps

    def make(self, target: LanguageModel, stream: np.ndarray, key: jax.Array) -> MtpHead:
        config = MtpConfig(
            with_layers(target.config, self.num_layers), target.config.num_layers, self.normed_features,
            self.norm_output, self.hidden_first, modules=self.modules,
        )  # fmt: skip
        head = MtpHead(config, key)
        for module in head.modules:
            module.norm[...] = norm_weight(target.model)
            if self.from_target:
                copy_layers(module, target.model)
        return head


@dataclasses.dataclass(frozen=True)
class MtpLoss:
    """The mean cross-entropy over the steps (DeepSeek-V3, 2412.19437, section 2.2).

    Each module has one step. Further steps repeat the last module, on its own hidden state and the
    true next token. The weight of the r-th repetition is ``beta`` to the power of r, as in FastMTP,
    which repeats its only module. The weights are scaled to a sum of one.

    Attributes:
      steps: the number of tokens to predict, at least the number of modules.
      beta: the weight of a repeated step relative to the step before it.
      weight: the factor of the whole loss, the paper's lambda.
      teacher: the weight of the target's distribution in the cross-entropy. The weight of the text
        is 1 - ``teacher``.
    """

    steps: int = number(3, 1, 64)
    beta: float = 0.6
    weight: float = 0.3
    teacher: float = number(0.0, 0, 1.0)

    def __call__(
        self, head: MtpHead, window: jax.Array, weight: jax.Array, key: jax.Array, target: Decoder
    ) -> jax.Array:
        out = read_target(target, window[:, :-1], head.config.taps)
        N = window.shape[1] - 1 - self.steps
        features = head.fuse(target, out.taps)[:, :N]
        weights = [self.beta ** max(s + 1 - len(head.modules), 0) for s in range(self.steps)]
        total = jnp.float32(0)
        for s, (module, hidden) in enumerate(unroll(head, target, features, window[:, 1:], self.steps)):

            def value(hidden, label, target_hidden, module=module):
                return cross_entropy(module.logits(target, hidden), label, target, target_hidden, self.teacher)

            label = window[:, s + 2 :][:, :N]
            target_hidden = out.hidden[:, s + 1 :][:, :N]
            values = map_pieces(value, head.config.vocab_size, hidden, label, target_hidden)
            total += weights[s] * weighted_mean(values, weight[:, s + 2 :][:, :N])
        return self.weight * total / sum(weights)


KIND = Kind("mtp", MtpShape, MtpLoss)
