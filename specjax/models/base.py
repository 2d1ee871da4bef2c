"""What a language model must offer to be decoded: the protocol that ``Decoder`` and a stranger's
model both follow.
"""

from typing import Protocol

import jax
from flax import struct

from ..cache import KVCache


@struct.dataclass
class Output:
    """A forward's result for N nodes.

    Attributes:
      hidden: float32 [B, N, E], hidden states that ``Model.logits`` maps to the vocabulary.
      rows: for each layer keys and values [B, K, M, D]: the uncommitted rows passed in, then the
        rows of the nodes. None for a layer whose attention was skipped.
      taps: float32 [B, N, E] for each layer asked for: the residual stream that enters the layer.
      logits: float32 [B, N, V] after each node, where ``decode.score`` computed them.
    """

    hidden: jax.Array
    rows: tuple
    taps: tuple = ()
    logits: jax.Array | None = None


class Model(Protocol):
    """A language model: a pytree of parameters with a configuration and two functions.

    It must be a pytree, because ``jit`` takes it as an argument: a Flax NNX module, or a dataclass
    that is registered with ``jax.tree_util.register_dataclass``. ``examples/own_model.py``
    implements it in plain JAX.

    Attributes:
      config: static, with the fields ``vocab_size``, ``hidden_size``, ``num_layers``,
        ``num_kv_heads``, ``head_dim`` (the cache is made by the last three) and ``context``, the
        longest sequence in tokens.
    """

    config: object

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
          mask: bool [B, N, M] or [N, M], which uncommitted rows each node sees, its own included: a
            chain passes a lower triangle, a tree its ancestors. Every node sees all committed
            tokens.
          cache: keys and values of ``cache.length`` tokens in each row; positions beyond are void.
          rows: uncommitted rows of earlier calls, which come before the nodes' own in ``mask``.
            Only drafts get them.
          row_positions: int32 [B, M], the positions of all rows. A model without attention windows
            ignores it.
          taps: layers whose input is returned, for heads that read the target's features.
          rope_lengths: int32 [B, 1], the prompt's length. A model without "dynamic" rotary scaling
            ignores it.
          computed: the residual stream and the rows of the first layers, where a drafter has run
            them already. Only a target of ``EarlyExit`` or ``LayerSkip`` gets it.

        Returns an Output without logits.
        """

    def logits(self, hidden: jax.Array) -> jax.Array:
        """Float32 [..., V] of hidden states [..., E]."""
