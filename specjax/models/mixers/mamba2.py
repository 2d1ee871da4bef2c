"""Mamba-2 (Dao & Gu 2024, arXiv 2405.21060): a state space with one decay for each head and token.

The state is that of the delta rule without the correction: a token with step d, input x and vectors
B and C adds d B x^T to a state that decays by exp(-d rate), and reads the state at C. So B stands
for the key, C for the query and d x for the update of ``recurrence``.
"""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx

from ...core.recurrence import DeltaRows, DeltaState, path_decays, product
from ..kinds import LayerConfig, MixerConfig
from ..layers import check_division, linear, matrix, param, rms_norm, value_of
from ..stacks import Stack, rows_of_sizes
from .convolution import as_mask, convolve


@dataclasses.dataclass(frozen=True)
class Mamba2Config(MixerConfig):
    """A state space of H heads in K groups.

    Attributes:
      heads, head_dim: H and the size P of a head's inputs.
      groups, state_dim: K, which divides H, and the size D of the vectors B and C of a group.
      kernel: W, the tokens that the convolution reads, the newest included.
      conv_bias, bias: whether the convolution has a bias, and whether the projections have.
    """

    heads: int
    head_dim: int
    groups: int
    state_dim: int
    kernel: int
    conv_bias: bool = True
    bias: bool = False

    @property
    def width(self) -> int:
        """The inputs of a group's heads, H / K * P."""
        return self.heads // self.groups * self.head_dim

    @property
    def channels(self) -> int:
        """C / K, the inputs of the convolution of a group: those of its heads, its B and its C."""
        return self.width + 2 * self.state_dim

    @property
    def stacks(self) -> dict[str, Stack]:
        conv = self.width, self.state_dim, self.state_dim
        joint = rows_of_sizes(self.groups, self.width, *conv, self.heads // self.groups)
        convolved = rows_of_sizes(self.groups, *conv)
        return {"joint": joint, "joint_bias": joint, "conv": convolved, "conv_bias": convolved}

    def empty(self, batch: int, capacity: int, dtype) -> DeltaState:
        memory = jnp.zeros((batch, self.heads, self.state_dim, self.head_dim), jnp.float32)
        inputs = jnp.zeros((batch, self.groups, self.kernel - 1, self.channels), jnp.float32)
        return DeltaState(memory, inputs)

    def count_weights(self, width: int) -> int:
        C = self.groups * self.channels
        return width * (C + 2 * self.heads * self.head_dim + self.heads) + C * self.kernel

    def split_over(self, devices: int) -> "Mamba2Config":
        check_division(devices, "groups of Mamba-2", self.groups)
        return self


class Mamba2(nnx.Module):
    """The state space of a layer, behind a short causal convolution.

    Rows that are computed with one another lie together, so that they stay on one device when the
    matrix is split. ``joint`` [C + H * P + H, E] stacks for each group the gates of its heads'
    outputs, their inputs, B, C and their steps. ``conv`` is [C, 1, W], ``out_proj`` [E, H * P].
    ``log_rate``, ``step_bias`` and ``skip`` are [H], and ``norm`` is [H * P].
    """

    def __init__(self, config: LayerConfig, keys: jax.Array, dtype):
        mixer, E = config.mixer, config.width
        assert isinstance(mixer, Mamba2Config)
        H, C = mixer.heads, mixer.groups * mixer.channels
        values = H * mixer.head_dim
        self.config = mixer
        self.eps = config.norm.eps
        first, second = jax.random.split(keys[0])
        self.joint = matrix(first, (C + values + H, E), ("heads", "embed"), dtype)
        self.conv = matrix(second, (C, 1, mixer.kernel), ("heads", None, None), dtype, mixer.kernel**-0.5)
        self.out_proj = matrix(keys[1], (E, values), ("embed", "heads"), dtype, 0.02 / (2 * config.depth) ** 0.5)
        self.joint_bias = param(jnp.zeros(C + values + H, dtype), ("heads",)) if mixer.bias else None
        self.conv_bias = param(jnp.zeros(C, dtype), ("heads",)) if mixer.conv_bias else None
        self.out_proj_bias = param(jnp.zeros(E, dtype), ("embed",)) if mixer.bias else None
        self.log_rate = param(jnp.zeros(H, dtype), ("heads",))
        self.step_bias = param(jnp.ones(H, dtype), ("heads",))
        self.skip = param(jnp.ones(H, dtype), ("heads",))
        self.norm = param(jnp.ones(values, dtype), ("heads",))

    @jax.named_scope("mamba2")
    def __call__(self, normed, nodes, past: DeltaState | None, rows: DeltaRows | None):
        config = self.config
        B, N, _ = normed.shape
        K = config.groups
        past = config.empty(B, 0, nodes.dtype) if past is None else past
        rows = past.blank_rows(0) if rows is None else rows
        mask = as_mask(nodes.mask, B, N, rows.keys.shape[2] + N)
        projected = linear(normed, self.joint[...], value_of(self.joint_bias)).reshape(B, N, K, -1)
        gates, mixed, steps = jnp.split(projected, [config.width, config.width + config.channels], -1)
        new = jnp.moveaxis(mixed, 1, 2)
        inputs = jnp.concatenate([past.inputs, rows.inputs, new], 2)
        convolved = jax.nn.silu(convolve(inputs, mask, self.conv[...], value_of(self.conv_bias)))
        values, rows_of = self._read(convolved, jnp.moveaxis(steps.reshape(B, N, -1), 1, 2), past, rows, mask)
        gated = rms_norm(values * jax.nn.silu(gates), self.norm[...].reshape(K, -1), self.eps)
        rows = DeltaRows(*(jnp.concatenate(pair, 2) for pair in zip(rows, (new, *rows_of))))
        return linear(gated.reshape(B, N, -1), self.out_proj[...], value_of(self.out_proj_bias)), rows

    def _read(self, mixed, steps, past: DeltaState, rows: DeltaRows, mask):
        """Outputs of the heads float32 [B, N, K, H / K * P]; B, updates and decays of the nodes.

        ``steps``: float32 [B, H, N], before their bias and softplus.
        """
        B, K, N, _ = mixed.shape
        config = self.config
        G, P = config.heads // K, config.head_dim

        def grouped(x):
            return x.reshape(B, K, G, *x.shape[2:])

        # 1. Inputs, B and C of the nodes, their steps, and the decays along their paths.
        x, k, q = jnp.split(mixed, [config.width, config.width + config.state_dim], -1)
        x = jnp.moveaxis(x.reshape(B, K, N, G, P), 3, 2)
        log_rate, bias, skip = (
            leaf[...].astype(jnp.float32)[:, None] for leaf in (self.log_rate, self.step_bias, self.skip)
        )
        steps = jax.nn.softplus(steps + bias)
        decay = -jnp.exp(log_rate) * steps
        weights, whole = map(grouped, path_decays(mask, jnp.concatenate([rows.decays[..., 0], decay], 2)))

        # 2. What the nodes read of the committed state, of all rows, and of their own inputs.
        updates = grouped(steps)[..., None] * x
        related = product("bknd,bkmd->bknm", q, jnp.concatenate([rows.keys, k], 2))[:, :, None] * weights
        values = whole[..., None] * product("bknd,bkgde->bkgne", q, grouped(past.memory))
        values += product("bkgnm,bkgme->bkgne", related, jnp.concatenate([grouped(rows.updates), updates], 3))
        values += skip.reshape(K, G, 1, 1) * x
        values = values.transpose(0, 3, 1, 2, 4).reshape(B, N, K, G * P)
        return values, (k, updates.reshape(B, K * G, N, P), decay[..., None])
