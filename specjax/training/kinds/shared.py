"""The record of a kind, the base class of shapes, and initial weights of drafters."""

from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from ...checkpoints.load import LanguageModel
from ...errors import RequestError
from ...heads import Head
from ...heads.base import HeadModule
from ...models.config import ModelConfig
from ...models.decoder import Decoder


class Shape:
    """The base class of shapes. A shape is a frozen dataclass; its fields are the keys of [head].

    Attributes:
      modules: the number of modules. Each predicts a token one place further than the module before
        it.
    """

    modules: int = 1

    def make(self, target: LanguageModel, stream: np.ndarray, key: jax.Array) -> HeadModule | Decoder:
        """Makes the untrained drafter in float32.

        Args:
          target: the model that the drafter drafts for.
          stream: the tokens of the data that the drafter learns, int32 [tokens].
          key: draws the random weights.
        """
        raise TypeError(f"{type(self).__name__} must define make")

    def reach(self, loss) -> int:
        """The number of tokens that ``loss`` looks ahead. A window must be longer."""
        return 1


class Kind(NamedTuple):
    """A kind of drafter that can be trained.

    Attributes:
      name: the name of the kind in recipes.
      shape: a subclass of ``Shape``.
      loss: a frozen dataclass; its fields are the keys of [loss]. A call
        ``loss(drafter, window, weight, key, target)`` returns the mean loss over windows int32
        [B, S + 1]. ``weight`` float32 [B, S + 2] weights each prediction by the predicted token: a
        token of the window, or the token after it. ``key`` draws the random parts of one step. No
        gradient flows into the target.
      is_head: True for a head. Otherwise the drafter is a language model, which can also write text
        by itself.
      reads_log: True if the batches come from a log of rounds, see ``training.feedback``.
      records: True if the batches come from features that are recorded while the target generates
        with the drafter, see ``training.online``.
      keeps_features: True if ``loss`` also takes windows with the target's features of them, see
        ``training.kept_features``.
      optimizer: the keys of [optimizer] in a recipe without this table.
    """

    name: str
    shape: type[Shape]
    loss: type
    is_head: bool = True
    reads_log: bool = False
    records: bool = False
    keeps_features: bool = False
    optimizer: dict[str, Any] = {}

    def wrap(self, module: HeadModule | Decoder, target: LanguageModel, name: str) -> LanguageModel | Head:
        """The module for decoding and saving. A language model gets the target's tokenizer."""
        if isinstance(module, HeadModule):
            return Head(module, module.config, name)
        return LanguageModel(module, module.config, target.tokenizer, name)


def with_layers(config: ModelConfig, num_layers: int) -> ModelConfig:
    """The configuration with ``num_layers`` of Llama's layers in float32, without windows."""
    return config.like_llama().replace(num_layers=num_layers, windows=(), dtype="float32")


def output_matrix(model: Decoder) -> jax.Array:
    """The matrix float32 [V, E] from hidden states to logits."""
    matrix = (model.embed if model.head is None else model.head)[...].astype("float32")
    return matrix if model.project_out is None else matrix @ model.project_out[...].astype("float32")


def norm_weight(model: Decoder) -> jax.Array:
    """The weights float32 [E] of the norm before the output matrix; ones without such a norm."""
    if model.norm is None:
        return jnp.ones(model.config.hidden_size)
    return model.norm[...].astype("float32") + model.config.norm_offset


class _WithLayers(Protocol):
    layers: nnx.List


def copy_layers(head: _WithLayers, target: Decoder) -> None:
    """Copies the target's last layers into the layers of ``head``, where names and shapes agree."""
    for own_layer, layer in zip(head.layers, list(target.layers)[-len(head.layers) :]):
        own = dict(nnx.to_flat_state(nnx.state(own_layer, nnx.Param)))
        for path, param in nnx.to_flat_state(nnx.state(layer, nnx.Param)):
            if path in own and own[path].shape == param.shape:
                own[path][...] = param[...].astype(own[path].dtype)
        nnx.update(own_layer, nnx.from_flat_state(own))


def spare_token(target: LanguageModel) -> int:
    """The last token that the tokenizer never produces, or the end token where there is none."""
    unused = set(range(target.config.vocab_size)) - set(target.tokenizer.get_vocab().values())
    ends = target.config.eos_token_ids or (0,)
    return max(unused, default=ends[0])


def check_taps(taps: tuple[int, ...], layers: int) -> None:
    """Raises RequestError for taps outside the target's layers."""
    if min(taps) < 0 or max(taps) > layers:
        raise RequestError(
            f"taps {', '.join(map(str, taps))} do not fit the target, which has {layers} layers; "
            f"use numbers from 0 to {layers}"
        )
