"""Hydra (2402.05109): Medusa's heads, which also read the tokens since the hidden state."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from ...checkpoints.load import LanguageModel
from ...heads import HydraConfig, HydraHeads
from .medusa import MedusaLoss, MedusaShape, copy_output
from .shared import Kind, norm_weight, with_layers


@dataclasses.dataclass(frozen=True)
class HydraShape(MedusaShape):
    """The shape of Hydra heads. In an untrained head, the tokens add nothing.

    Attributes:
      num_heads, num_layers: see ``MedusaConfig``.
      prefix: True for a prefix layer that reads the hidden states first (Hydra++). It has the
        shapes of the target's layers.
    """

    prefix: bool = False

    def make(self, target: LanguageModel, stream: np.ndarray, key: jax.Array) -> HydraHeads:
        layers = with_layers(target.config, 1) if self.prefix else None
        heads = HydraHeads(HydraConfig(**self.sizes(target), head_bias=True, layers=layers), key)
        copy_output(heads, target.model)
        for head in heads.heads:  # Identity on the hidden state, zero on the token embeddings.
            residual = head.blocks[0].residual
            assert residual is not None  # Hydra's first blocks read more than one vector
            rows, columns = residual.shape
            residual[...] = jnp.eye(rows, columns)
        if heads.norm is not None:  # The second norm keeps the size of the target's normed states.
            scale = jnp.sqrt(jnp.mean(jnp.square(norm_weight(target.model))))
            heads.norm[...] = jnp.full_like(heads.norm[...], scale)
        return heads


KIND = Kind("hydra", HydraShape, MedusaLoss)
