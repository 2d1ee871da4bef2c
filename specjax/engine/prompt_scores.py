"""The log-probabilities of a prompt's own tokens, computed while its chunks are read."""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import lax

from ..core.selection import likeliest
from ..core.settings import own_settings
from ..core.state import Requests
from ..loop.prefill import Filled, fill_chunk
from ..models.base import Model, Output
from ..parallel import fetch
from .prefix_blocks import BLOCK
from .prompt_programs import Part, PromptPrograms

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
    """What ``fill_chunk`` gives, and the scores of the chunk with ``top`` likeliest tokens.

    Donate ``filled``.
    """
    heard = _Heard(target)
    filled = fill_chunk(heard, requests.tokens, requests.lengths - 1, filled, start, chunk, taps)
    following = jnp.take(requests.tokens[0], start + 1 + jnp.arange(chunk), mode="clip")
    in_pieces = lambda x: x.reshape(-1, math.gcd(chunk, _PIECE), *x.shape[1:])
    score = lambda piece: _score(target, piece[0], piece[1], top)
    scores = lax.map(score, (in_pieces(heard.hidden[0]), in_pieces(following)))
    return filled, jax.tree.map(lambda x: x.reshape(chunk, *x.shape[2:]), scores)


def _score(target: Model, hidden: jax.Array, following: jax.Array, top: int) -> Scores:
    """The scores after N hidden states [N, E], for the tokens ``following`` [N]."""
    logprobs = jax.nn.log_softmax(target.logits(hidden[None])[0].astype(jnp.float32))
    chosen = jnp.take_along_axis(logprobs, following[:, None], 1)[:, 0]
    values, ids = likeliest(logprobs, top)
    return Scores(chosen, ids, values)


class Scoring:
    """The programs that read prompts and score their tokens, one for each size of a chunk.

    Args:
      programs: compiles and calls the programs, and has the pools.
      filled: a row before its first chunk.
      layouts: the shardings of a row and of scores; None without a mesh.
      chunk: the most tokens of a chunk.
      static: static arguments of ``read_scored_chunk``.
    """

    def __init__(self, programs: PromptPrograms, filled: Filled, layouts: tuple, *, chunk: int, **static):
        self._programs = programs
        self._filled = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), filled)
        self._layouts = layouts
        self._chunk = chunk
        self._static = static

    def read(self, part: Part, size: int) -> tuple[Filled, Scores]:
        """The row of ``part`` after a chunk of ``size`` tokens, and its scores on the host."""
        call = self._reading(part, size)
        (filled, scores), self._programs._target_pools = self._programs._call(**call)
        return filled, fetch(scores)

    def compile(self, request: Requests, unread: int) -> None:
        """Compiles the programs for a prompt of ``unread`` tokens, if they are not.

        Any thread may call this. On a mesh the programs are compiled at their first use.
        """
        size = BLOCK
        while self._programs.session.mesh is None and size <= self._chunk and size < 2 * max(unread, BLOCK):
            self._programs._compile_ahead(**self._reading(Part(request, self._filled, None), size))
            size *= 2

    def _reading(self, part: Part, size: int) -> dict[str, Any]:
        programs = self._programs
        function = partial(read_scored_chunk, chunk=size, **self._static)
        lent = programs._target_pools, programs.table_of([part.blocks])
        options: dict[str, Any] = dict(donated=(2,), key=(size,), out_shardings=(self._layouts, self._layouts[1]))
        args = part.request, part.filled, np.int32(part.start)
        return programs._lend(function, args, programs._modules[:1], *lent, **options)
