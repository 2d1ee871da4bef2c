"""The protocol of language models, which ``Decoder`` follows and a user's own model can follow."""

from typing import Protocol

import jax
from flax import struct

from ..core.cache import KVCache


class Output(struct.PyTreeNode):
    """The result of a forward for N nodes.

    Attributes:
      hidden: float32 [B, N, E], hidden states that ``Model.logits`` maps to the vocabulary.
      rows: for each layer keys and values [B, K, M, D], or rows of ``recurrence``: first the
        uncommitted rows that the caller passed, then the rows of the nodes. None for a layer whose
        attention was skipped, and () for a layer that reads the rows of another layer.
      taps: for each requested layer the residual stream float32 [B, N, E] that enters the layer.
      logits: float32 [B, N, V] after each node; None unless ``loop.decode.score`` computed them.
    """

    hidden: jax.Array
    rows: tuple
    taps: tuple = ()
    logits: jax.Array | None = None


class Scored(Output):
    """An Output with its logits, as ``loop.decode.score`` returns it."""

    logits: jax.Array = struct.field(kw_only=True)


class Sizes(Protocol):
    """The sizes of a model: what a method and the cache read from ``Model.config``."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def hidden_size(self) -> int: ...
    @property
    def num_layers(self) -> int: ...
    @property
    def num_kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def context(self) -> int: ...


class Model(Protocol):
    """A language model: a pytree of parameters with a configuration and two functions.

    It must be a pytree, because ``jit`` takes it as an argument: a Flax NNX module, or a dataclass
    registered with ``jax.tree_util.register_dataclass``. ``examples/own_model.py`` implements the
    protocol in plain JAX.

    Attributes:
      config: a static object with the fields ``vocab_size``, ``hidden_size``, ``num_layers``,
        ``num_kv_heads``, ``head_dim`` and ``context``, the longest sequence in tokens. The shape of
        the cache follows from layers, key/value heads and head size, or from ``empty_layers`` where
        the object has it, see ``cache.empty``.
    """

    @property
    def config(self) -> Sizes: ...

    def __call__(
        self,
        tokens: jax.Array,
        positions: jax.Array,
        mask: jax.Array,
        cache: KVCache,
        *,
        rows: tuple | None = None,
        row_positions: jax.Array | None = None,
        taps: tuple[int, ...] = (),
        rope_lengths: jax.Array | None = None,
        computed: tuple | None = None,
    ) -> Output:
        """Scores N nodes that follow the cache, and writes nothing.

        Args:
          tokens, positions: int32 [B, N]. Nodes of a tree at one depth share a position.
          mask: bool [B, N, M] or [N, M], the uncommitted rows that each node sees, its own
            included: a lower triangle for a chain, the ancestors for a tree. Every node also sees
            all committed tokens.
          cache: keys and values of ``cache.length`` tokens in each row; positions beyond are void.
          rows: uncommitted rows of earlier calls. In ``mask`` they come before the nodes' own rows.
            Only drafts get them.
          row_positions: int32 [B, M], the positions of all rows. A model without attention windows
            may ignore it.
          taps: the layers whose input to return, for heads that read the target's features.
          rope_lengths: int32 [B, 1], the prompt's length. A model without "dynamic" rotary scaling
            may ignore it.
          computed: the residual stream after the first layers and the rows of these layers, if a
            drafter has run them already. Only a target of ``EarlyExit`` or ``LayerSkip`` gets it.

        Returns an Output without logits.
        """
        ...

    def logits(self, hidden: jax.Array) -> jax.Array:
        """Logits float32 [..., V] of hidden states [..., E]."""
        ...
