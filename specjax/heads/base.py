"""The parts that all trained heads share: configuration, module, kind, and a loaded head.

Implementations often get the alignment wrong. Row i of a head that reads features holds the
target's feature of token i and the *next* token, i + 1. The row is at position i and predicts token
i + 2. Tokens are shifted by one, features are not. Each further module of a head shifts the tokens
by one more.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from ..core.cache import KVCache
from ..models.config import ModelConfig
from ..models.decoder import Decoder, run_layers
from ..models.layer import Nodes
from ..models.layers import lookup


class HeadConfig:
    """The configuration of a head. Subclasses are frozen dataclasses and therefore hashable.

    Attributes:
      kind: the name of the kind of head.
      vocab_size, target_size, target_layers: vocabulary, width and depth of the head's target.
      taps: the layers of the target whose inputs the head reads, see ``Decoder``. The number
        ``target_layers`` stands for the output of the last layer.
      layers: the configuration of the decoder layers of the head, or of each of its modules; None
        for a head without decoder layers.
      modules: the number of modules, see ``HeadModule.modules``.
      mask_token: the token that the head reads at places that are not known yet; None for a head
        that reads no such places.
      num_heads: the number of heads that read the same hidden state and predict successive tokens
        (Medusa); 0 for a head that continues its own hidden states or predicts a block.
      reads_tokens: whether these heads also read the tokens after that hidden state (Hydra).
      reads_cache: whether the head reads the target's cache. It then cannot read a text by itself.
      axes: the axes of the parameters that decoders do not have, for ``specjax grow``, see
        ``tools.grow.parameters``. The last name in a parameter's path names it.
      passed_on: for matrices that make a stream, the number of the input vector that they pass on;
        see ``tools.grow.parameters.Growth``.
      part_not_grown: the part of the head that growth does not know; empty for none.
    """

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field]]
    kind: ClassVar[str]
    vocab_size: int
    target_size: int
    target_layers: int
    taps: tuple[int, ...]
    layers: ModelConfig | None
    modules: int = 1
    mask_token: int | None = None
    num_heads: int = 0
    reads_tokens: ClassVar[bool] = False
    reads_cache: ClassVar[bool] = False
    part_not_grown: str = ""

    @property
    def axes(self) -> Mapping[str, tuple[str, ...]]:
        return {}

    @property
    def passed_on(self) -> Mapping[str, int]:
        return {}

    def with_dtype(self, dtype: str) -> "HeadConfig":
        """The same configuration, with weights of type ``dtype``."""
        return dataclasses.replace(self, layers=self.layers and self.layers.replace(dtype=dtype))


class LastLayerConfig(HeadConfig):
    """The configuration of a head of the target's width, which reads the last layer's output."""

    layers: ModelConfig

    @property
    def taps(self) -> tuple[int, ...]:
        return (self.target_layers,)

    @property
    def target_size(self) -> int:
        return self.layers.hidden_size

    @property
    def vocab_size(self) -> int:
        return self.layers.vocab_size


class RowModule(nnx.Module):
    """A module of a head that scores rows by ``logits``."""

    logits: Callable[..., jax.Array]


class HeadModule(RowModule):
    """The parameters and the forward of a head.

    A head that predicts token by token from features has a cache of its own. Its call reads N rows:

        module(target, tokens, features, positions, mask, cache=None, *, rows=None,
        row_positions=None)

    - ``tokens`` int32 [B, N]: for each row the token after the feature's own token. Each module
      reads tokens one place further on than the module before.
    - ``features`` float32 [B, N, E]: the target's features from ``fuse``, or ``hidden`` of an
      earlier call.
    - ``positions`` int32 [B, N]: the positions of the features.
    - ``mask``, ``rows``, ``row_positions``: as in ``Decoder``.
    - ``cache``: as in ``Decoder``, with the layers of all modules one after another.

    The call returns an ``Output``. Its ``hidden`` float32 [B, N, E] are the features of the next
    tokens, and its ``rows`` are those of the module's layers. ``logits(target, hidden)`` maps
    hidden states to float32 [..., V] over the target's vocabulary, with ``LACKING`` at tokens that
    the head does not know. ``BlockHead`` takes other arguments, and so does ``logits`` of
    ``MedusaHeads`` and ``HydraHeads``.
    """

    config: HeadConfig

    @property
    def modules(self) -> Sequence[RowModule]:
        """The modules, each of which continues the one before; by default the head itself.

        Module 0 reads the features. Module k reads the hidden states of module k - 1, and tokens
        one place further on. The last module continues its own hidden states.
        """
        return (self,)

    def fuse(self, target: Decoder, taps: tuple) -> jax.Array:
        """The features float32 [B, N, E] of the tokens that have these taps.

        By default they are the target's last hidden states after its final norm.
        """
        return target.last_norm(taps[0])

    def mask(self, target: Decoder) -> tuple[int, jax.Array] | None:
        """The token and the feature float32 [1, 1, E] that stand at places not known yet.

        None for a head that reads no such places.
        """
        return None


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of head, with every fact that other modules need of it.

    Attributes:
      config: the class of its configurations.
      module: the class of its modules. ``module(config, key, dtype=None)`` makes a random one.
      usual: makes the configuration of the usual shape, for plans without a checkpoint. Its
        arguments are the target, and one layer of Llama of the target's sizes.
      tuned_trees: whether its drafted trees have a fixed shape, which ``specjax tune`` searches.
      token_by_token: whether it drafts one token after another from features, so that method auto
        may use it.
      files: names of files with its weights, besides the names of every model.
      prefixes: regular expressions for the beginnings of its tensors inside a language model's
        checkpoint.
    """

    config: type[HeadConfig]
    module: Callable[..., HeadModule]
    usual: Callable[[ModelConfig, ModelConfig], HeadConfig]
    tuned_trees: bool = False
    token_by_token: bool = False
    files: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.config.kind


@dataclasses.dataclass(frozen=True, eq=False)
class Head:
    """A loaded head.

    Attributes:
      module: its parameters, with the forward.
      config: its shapes and variants; hashable.
      name: the name under which it was loaded.
      layout: the layout of its checkpoint; empty for a head that was not loaded.
    """

    module: HeadModule
    config: HeadConfig
    name: str
    layout: str = ""


def embeddings(own: nnx.Param | None, target: Decoder, tokens: jax.Array) -> jax.Array:
    """Embeddings float32 [B, N, E] of tokens int32 [B, N], from the own table or the target's."""
    return target.token_embeddings(tokens) if own is None else lookup(own[...], tokens).astype(jnp.float32)


def run_own_layers(layers, x, positions, mask, cache: KVCache | None, dtype, *, rows=None, row_positions=None) -> tuple:
    """The residual stream after the head's layers, and the key/value rows of these layers.

    Rows have the dtype of the cache, or ``dtype`` without a cache. The other arguments are as in
    ``Decoder``.
    """
    dtype = dtype if cache is None else cache.dtype
    length = jnp.zeros(x.shape[0], jnp.int32) if cache is None else cache.held
    x, new_rows, _ = run_layers(layers, x, Nodes(positions, mask, dtype, length, row_positions), cache, rows=rows)
    return x, new_rows
