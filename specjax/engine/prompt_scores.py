"""The log-probabilities of a prompt's own tokens, computed while its chunks are read."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax

from ..core.selection import likeliest
from ..core.settings import own_settings
from ..core.state import Requests
from ..loop.prefill import Filled, fill_chunk
from ..models.base import Model, Output

_PIECE = 64
"""The most tokens whose logits over the vocabulary are in memory at once."""


class Scores(struct.PyTreeNode):
    """Log-probabilities of the tokens that follow the N tokens of a chunk.

    They are those of the target before any option is applied, as in ``Logprobs``.

    Attributes:
      chosen: float32 [N], of the prompt's next token after each token; void after its last.
      top_ids, top: int32 and float32 [N, n], the n likeliest tokens there.
    """

    chosen: jax.Array
    top_ids: jax.Array
    top: jax.Array


class _Heard:
    """A model that keeps the hidden states of its forward, which ``fill_chunk`` does not return."""

    def __init__(self, model: Model):
        self._model = model
        self.config = model.config
        self.hidden: Any = None

    def __call__(self, *args, **options) -> Output:
        output = self._model(*args, **options)
        self.hidden = output.hidden
        return output


@own_settings()
def read_scored_chunk(
    target: Model,
    requests: Requests,
    filled: Filled,
    start: jax.Array,
    *,
    chunk: int,
    taps: tuple[int, ...],
    top: int,
) -> tuple[Filled, Scores]:
    """What ``slots.read_chunk`` gives, and the scores of the chunk with ``top`` likeliest tokens.

    Donate ``filled``.
    """
    heard = _Heard(target)
    filled = fill_chunk(heard, requests.tokens, requests.lengths - 1, filled, start, chunk, taps)
    following = jnp.take(requests.tokens[0], start + 1 + jnp.arange(chunk), mode="clip")
    in_pieces = lambda x: x.reshape(-1, math.gcd(chunk, _PIECE), *x.shape[1:])
    score = lambda piece: _score(target, *piece, top)
    scores = lax.map(score, (in_pieces(heard.hidden[0]), in_pieces(following)))
    return filled, jax.tree.map(lambda x: x.reshape(chunk, *x.shape[2:]), scores)


def _score(target: Model, hidden: jax.Array, following: jax.Array, top: int) -> Scores:
    """The scores after N hidden states [N, E], for the tokens ``following`` [N]."""
    logprobs = jax.nn.log_softmax(target.logits(hidden[None])[0].astype(jnp.float32))
    chosen = jnp.take_along_axis(logprobs, following[:, None], 1)[:, 0]
    values, ids = likeliest(logprobs, top)
    return Scores(chosen, ids, values)
