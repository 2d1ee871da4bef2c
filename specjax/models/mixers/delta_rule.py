"""The gated delta rule behind a short causal convolution (Yang et al. 2025, arXiv 2412.06464).

The nodes of a forward are computed at once. The updates u of a chain solve a triangular system
(equations 8 and 9 of Yang et al. 2024, arXiv 2406.06484). The system of a tree has the same form:
a node's row has entries at its ancestors alone. ``recurrence`` has the notation.
"""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from ...core.recurrence import DeltaRows, DeltaState, path_decays, product
from ..kinds import LayerConfig, MixerConfig
from ..layers import check_division, linear, matrix, param, rms_norm
from ..stacks import Stack, rows_of_sizes
from .convolution import as_mask, convolve

_UNIT_EPS = 1e-6
"""The constant under the root of the length of queries and keys, as in transformers."""


@dataclasses.dataclass(frozen=True)
class DeltaRuleConfig(MixerConfig):
    """The gated delta rule with H value heads and K key heads.

    Attributes:
      key_heads, value_heads: K and H; K divides H.
      key_dim, value_dim: Dk and Dv.
      kernel: W, the tokens that the convolution reads, the newest included.
    """

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    kernel: int

    @property
    def groups(self) -> int:
        """G, the number of value heads of each key head."""
        return self.value_heads // self.key_heads

    @property
    def channels(self) -> int:
        """C / K, the inputs of the convolution of a key head: its query, its key and G values."""
        return 2 * self.key_dim + self.groups * self.value_dim

    @property
    def stacks(self) -> dict[str, Stack]:
        values = self.groups * self.value_dim
        conv = self.key_dim, self.key_dim, values
        sizes = {"qkvz": (*conv, values), "conv": conv, "ba": (self.groups, self.groups)}
        return {name: rows_of_sizes(self.key_heads, *each) for name, each in sizes.items()}

    def empty(self, batch: int, capacity: int, dtype) -> DeltaState:
        memory = jnp.zeros((batch, self.value_heads, self.key_dim, self.value_dim), jnp.float32)
        inputs = jnp.zeros((batch, self.key_heads, self.kernel - 1, self.channels), jnp.float32)
        return DeltaState(memory, inputs)

    def count_weights(self, width: int) -> int:
        values = self.value_heads * self.value_dim
        C = self.key_heads * self.channels
        return width * (C + 2 * values + 2 * self.value_heads) + C * self.kernel

    def split_over(self, devices: int) -> "DeltaRuleConfig":
        check_division(devices, "key heads of the delta rule", self.key_heads)
        return self


class DeltaRule(nnx.Module):
    """The gated delta rule of a layer.

    Rows that are computed with one another lie together, so that they stay on one device when the
    matrix is split. ``qkvz`` [C + H * Dv, E] stacks for each key head its query, its key, the
    values of its G value heads, and their output gates. ``ba`` [2 * H, E] stacks for each key head
    the G writing strengths and the G decays. ``conv`` is [C, 1, W], ``out_proj`` [E, H * Dv].
    """

    def __init__(self, config: LayerConfig, keys: jax.Array, dtype):
        mixer = config.mixer
        E = config.width
        assert isinstance(mixer, DeltaRuleConfig)
        H = mixer.value_heads
        values = H * mixer.value_dim
        C = mixer.key_heads * mixer.channels
        self.config = mixer
        self.eps = config.norm.eps
        parts = jax.random.split(keys[0], 3)
        self.qkvz = matrix(parts[0], (C + values, E), ("heads", "embed"), dtype)
        self.ba = matrix(parts[1], (2 * H, E), ("heads", "embed"), dtype)
        self.conv = matrix(parts[2], (C, 1, mixer.kernel), ("heads", None, None), dtype, mixer.kernel**-0.5)
        self.log_rate = param(jnp.zeros(H, dtype), ("heads",))
        self.decay_bias = param(jnp.ones(H, dtype), ("heads",))
        self.norm = param(jnp.ones(mixer.value_dim, dtype), (None,))
        self.out_proj = matrix(keys[1], (E, values), ("embed", "heads"), dtype, 0.02 / (2 * config.depth) ** 0.5)

    @jax.named_scope("delta_rule")
    def __call__(self, normed, nodes, past: DeltaState | None, rows: DeltaRows | None):
        config = self.config
        B, N, _ = normed.shape
        past = config.empty(B, 0, nodes.dtype) if past is None else past
        rows = past.blank_rows(0) if rows is None else rows
        mask = as_mask(nodes.mask, B, N, rows.keys.shape[2] + N)
        projected = linear(normed, self.qkvz[...]).reshape(B, N, config.key_heads, -1)
        mixed, gates = jnp.split(projected, [config.channels], -1)
        new = jnp.moveaxis(mixed, 1, 2)
        inputs = jnp.concatenate([past.inputs, rows.inputs, new], 2)
        convolved = jax.nn.silu(convolve(inputs, mask, self.conv[...]))
        values, rows_of = self._update(convolved, *self._strengths(normed), past, rows, mask)
        gates = gates.reshape(B, N, -1, config.value_dim)
        gated = rms_norm(values, self.norm[...], self.eps) * jax.nn.silu(gates)
        rows = DeltaRows(*(jnp.concatenate(pair, 2) for pair in zip(rows, (new, *rows_of))))
        return linear(gated.reshape(B, N, -1), self.out_proj[...]), rows

    def _strengths(self, normed):
        """Beta and log alpha of each node, float32 [B, H, N]."""
        B, N, _ = normed.shape
        beta, rate = jnp.split(linear(normed, self.ba[...]).reshape(B, N, self.config.key_heads, -1), 2, -1)

        def by_head(x):
            return jnp.moveaxis(x.reshape(B, N, -1), 1, 2)

        bias, log_rate = (leaf[...].astype(jnp.float32)[:, None] for leaf in (self.decay_bias, self.log_rate))
        return jax.nn.sigmoid(by_head(beta)), -jnp.exp(log_rate) * jax.nn.softplus(by_head(rate) + bias)

    def _update(self, mixed, beta, decay, past: DeltaState, rows: DeltaRows, mask):
        """The values read, float32 [B, N, H, Dv], and keys, updates and decays of the nodes."""
        B, K, N, _ = mixed.shape
        G = self.config.groups
        Dk = self.config.key_dim
        Dv = self.config.value_dim
        R = rows.keys.shape[2]

        def grouped(x):
            return x.reshape(B, K, G, *x.shape[2:])

        def recalled(x):
            """The values of the committed state at the vectors x of the nodes."""
            return whole[..., None] * product("bknd,bkgde->bkgne", x, memory)

        def related(x):
            """The weight of each row's update in the state of each node, at the vectors x."""
            return product("bknd,bkmd->bknm", x, keys)[:, :, None] * weights

        # 1. Queries, keys and values of the nodes, and the decays along their paths.
        q, k, v = jnp.split(mixed, [Dk, 2 * Dk], -1)
        q = _unit(q) * Dk**-0.5
        k = _unit(k)
        v = jnp.moveaxis(v.reshape(B, K, N, G, Dv), 3, 2)
        weights, whole = map(grouped, path_decays(mask, jnp.concatenate([rows.decays[..., 0], decay], 2)))
        memory = grouped(past.memory)
        known = grouped(rows.updates)
        beta = grouped(beta)[..., None]
        keys = jnp.concatenate([rows.keys, k], 2)

        # 2. The updates of the nodes. Each depends on those of its ancestors.
        of_keys = beta * related(k)
        updates = beta * (v - recalled(k)) - product("bkgnm,bkgme->bkgne", of_keys[..., :R], known)
        if N > 1:  # (I + A) u = the right side, with A the relations to ancestors among the N nodes
            updates = lax.linalg.triangular_solve(
                jnp.tril(of_keys[..., R:], -1), updates, left_side=True, lower=True, unit_diagonal=True
            )

        # 3. The values that the queries read.
        values = recalled(q) + product("bkgnm,bkgme->bkgne", related(q), jnp.concatenate([known, updates], 3))
        values = jnp.moveaxis(values.reshape(B, K * G, N, Dv), 1, 2)
        return values, (k, updates.reshape(B, K * G, N, Dv), decay[..., None])


def _unit(x: jax.Array) -> jax.Array:
    """The vectors x [..., D] at length 1."""
    return x * lax.rsqrt(jnp.sum(x * x, -1, keepdims=True) + _UNIT_EPS)
