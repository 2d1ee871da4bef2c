"""Corrections of the logits of a block's places by the tokens before them.

A correction is a code [r] of each place, times an output matrix [Vd, r]. ``Markov`` computes the
code of a place from the token before it, so a chain is drawn place by place. ``Refiner`` computes
the codes of all places at once, from a guess of all their tokens.
"""

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from ..models.layers import linear, lookup, matrix, param, value_of

MARKOV = ("vanilla", "gated", "rnn", "selector")
"""Kinds of Markov corrections, see ``Markov``."""


class Markov(nnx.Module):
    """A low-rank correction of a place's logits by the token before the place (DSpark, DFlash 2).

    The correction is ``second`` [Vd, r] times a code of that token. ``kind`` defines the code:

    - "vanilla": the code is the token's row of ``first`` [V, r].
    - "gated": the same row, multiplied by a gate. The gate is the sigmoid of ``gate`` [r, E + r]
      times the place's hidden state and the row.
    - "rnn": a state runs along the block, zero at its first place. ``gate`` [3r, 2r + E] times
      state, row and hidden state gives three vectors: how much of the state stays, the new part of
      the state, and the code.
    - "selector": the same row, multiplied by ``gate`` [r, E] times the place's hidden state.
    """

    def __init__(self, kind: str, V: int, Vd: int, r: int, E: int, key: jax.Array, dtype):
        first, second, gate = jax.random.split(key, 3)
        self.kind = kind
        self.first = matrix(first, (V, r), ("vocab", None), dtype)
        self.second = matrix(second, (Vd, r), ("vocab", None), dtype, 0.0)
        shape = {"gated": (r, E + r), "rnn": (3 * r, 2 * r + E), "selector": (r, E)}.get(kind)
        self.gate = matrix(gate, shape, (None, None), dtype) if shape else None
        self.gate_bias = param(jnp.zeros(shape[0], dtype), (None,)) if shape and kind != "selector" else None

    def embedding(self, before: jax.Array) -> jax.Array:
        """Rows float32 [..., r] of tokens int32 [...]."""
        return lookup(self.first[...], before).astype(jnp.float32)

    def step(self, state: jax.Array, hidden: jax.Array, before: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The state float32 [..., r] after a place, and the place's code.

        Args:
          state: float32 [..., r], before the place.
          hidden: float32 [..., E], of the place.
          before: int32 [...], the token before the place.
        """
        code = self.embedding(before)
        if self.gate is None:  # "vanilla"
            return state, code
        weight, bias = self.gate[...], value_of(self.gate_bias)
        gate = lambda *read: linear(jnp.concatenate(read, -1), weight, bias)
        if self.kind == "selector":
            return state, code * gate(hidden)
        if self.kind == "gated":
            return state, code * jax.nn.sigmoid(gate(hidden, code))
        stays, becomes, code = jnp.split(gate(state, code, hidden), 3, -1)
        stays = jax.nn.sigmoid(stays)
        return stays * state + (1 - stays) * jnp.tanh(becomes), jnp.tanh(code)

    def codes(self, hidden: jax.Array, before: jax.Array) -> jax.Array:
        """Codes float32 [..., D, r] of D places of a block, in order.

        Args:
          hidden: float32 [..., D, E], the hidden states of the places.
          before: int32 [..., D], the token before each place.
        """
        places = (jnp.moveaxis(hidden, -2, 0), jnp.moveaxis(before, -1, 0))
        state = jnp.zeros((*before.shape[:-1], self.first.shape[1]))
        return jnp.moveaxis(lax.scan(lambda state, place: self.step(state, *place), state, places)[1], 0, -2)

    def __call__(self, code: jax.Array) -> jax.Array:
        """The correction float32 [..., Vd] over the draft vocabulary, of codes [..., r]."""
        return linear(code, self.second[...])


class Refiner(nnx.Module):
    """A correction by the tokens before all places of a block at once (XPress).

    Each place reads its hidden state, the mean of the block's hidden states, and the token before
    it. ``join`` [r, 3r] makes a vector x_k of the three parts. ``mix`` [r, P, P] adds to each entry
    c the sum over j <= k of mix[c, k, j] x_j[c]. A gated feed-forward of width ``size``, which adds
    its input to its output, gives the code.
    """

    def __init__(self, V: int, Vd: int, r: int, size: int, places: int, E: int, key: jax.Array, dtype):
        keys = iter(jax.random.split(key, 7))
        self.first = matrix(next(keys), (V, r), ("vocab", None), dtype)
        self.own = matrix(next(keys), (r, E), (None, None), dtype)
        self.mean = matrix(next(keys), (r, E), (None, None), dtype)
        self.join = matrix(next(keys), (r, 3 * r), (None, None), dtype)
        self.mix = param(jnp.zeros((r, places, places), dtype), (None, None, None))
        self.gate, self.up = (matrix(next(keys), (size, r), (None, None), dtype) for _ in range(2))
        self.down = matrix(next(keys), (r, size), (None, None), dtype)
        self.second = matrix(key, (Vd, r), ("vocab", None), dtype, 0.0)

    def codes(self, hidden: jax.Array, before: jax.Array) -> jax.Array:
        """Codes float32 [..., P, r] of all P places of a block.

        Args:
          hidden: float32 [..., P, E], the hidden states of the places.
          before: int32 [..., P], the token before each place.
        """
        mean = jnp.broadcast_to(hidden.mean(-2, keepdims=True), hidden.shape)
        row = lookup(self.first[...], before).astype(jnp.float32)
        parts = linear(hidden, self.own[...]), linear(mean, self.mean[...]), row
        x = linear(jnp.concatenate(parts, -1), self.join[...])
        x = x + jnp.einsum("ckj,...jc->...kc", jnp.tril(self.mix[...]).astype(jnp.float32), x)
        return x + linear(jax.nn.silu(linear(x, self.gate[...])) * linear(x, self.up[...]), self.down[...])

    def __call__(self, code: jax.Array) -> jax.Array:
        """The correction float32 [..., Vd] over the draft vocabulary, of codes [..., r]."""
        return linear(code, self.second[...])
