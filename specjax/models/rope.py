"""Rotary position embedding (Su et al. 2021) and the ways to stretch it beyond the trained context.

A rotation may cover a part of a head. ``rotate`` pairs dimension i of a head with dimension i + D /
2, and dimensions that are not rotated have the frequency zero. Checkpoints that pair other
dimensions are read in this order, see ``checkpoints.blocks``.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp


@dataclasses.dataclass(frozen=True)
class Rope:
    """Rotary positions, optionally stretched beyond the trained context.

    Attributes:
      theta: the base of the frequencies.
      rope_type: "default", "linear", "dynamic", "llama3", "yarn", "longrope" or "proportional".
      factor: the stretched context divided by the trained one.
      original_max_position_embeddings: the trained context in tokens.
      low_freq_factor, high_freq_factor: the ends of the range in which "llama3" blends frequencies,
        in turns within the trained context.
      beta_fast, beta_slow: the ends of the range in which "yarn" blends frequencies, in turns
        within the trained context.
      attention_factor: the factor on cosines and sines of "yarn" and "longrope"; None derives it,
        for "yarn" from ``mscale`` and ``mscale_all_dim``.
      mscale, mscale_all_dim: the weights in the numerator and the denominator of the derived
        factor.
      truncate: whether "yarn" rounds the ends of its range to whole dimensions.
      short_factor, long_factor: the divisors of each frequency of "longrope", for a sequence within
        the trained context and for a longer one.
      rotated: the part of a head's dimensions that is rotated; 0 for a layer without rotary
        positions.
    """

    theta: float = 10000.0
    rope_type: str = "default"
    factor: float = 1.0
    original_max_position_embeddings: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    short_factor: tuple[float, ...] = ()
    long_factor: tuple[float, ...] = ()
    rotated: float = 1.0

    def rotated_size(self, head_dim: int) -> int:
        """The number of rotated dimensions of a head."""
        return int(head_dim * self.rotated)

    @property
    def score_factor(self) -> float:
        """The factor on the scores: "yarn" applies ``mscale_all_dim`` to whole heads (DeepSeek-V2).

        Only latent attention has it. The other kinds of attention scale the rotated dimensions
        only.
        """
        return _temperature(self.factor, self.mscale_all_dim) ** 2 if self.mscale_all_dim else 1.0


def rotary(
    positions: jax.Array, rope: Rope, head_dim: int, lengths: jax.Array | None = None
) -> tuple[jax.Array, jax.Array]:
    """Cosines and sines, each float32 [B, N, D / 2], of positions int32 [B, N].

    Args:
      lengths: int32, broadcastable to [B, N], the sequence length for "dynamic" and "longrope"; by
        default each token's position + 1. For a prompt it is the prompt's length, so that the
        result does not depend on how the prompt is read in chunks.
    """
    size = rope.rotated_size(head_dim)
    if rope.rope_type in ("dynamic", "longrope"):
        frequencies, scale = _by_length(rope, size, positions + 1 if lengths is None else lengths)
    else:
        frequencies, scale = _frequencies(rope, head_dim if rope.rope_type == "proportional" else size)
    turning, pairs = size // 2, head_dim // 2
    if turning < pairs:  # the others have angle zero, so cosine 1 and sine 0
        frequencies = frequencies[..., :turning]
        frequencies = jnp.pad(frequencies, [(0, 0)] * (frequencies.ndim - 1) + [(0, pairs - turning)])
        scale = jnp.where(jnp.arange(pairs) < turning, scale, 1.0)
    angles = positions[..., None].astype(jnp.float32) * frequencies
    return jnp.cos(angles) * scale, jnp.sin(angles) * scale


def rotate(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    """x [B, N, ..., D], rotated by the angles of its positions."""
    between = (1,) * (x.ndim - cos.ndim)
    cos, sin = (a.reshape(*a.shape[:2], *between, a.shape[-1]) for a in (cos, sin))
    a, b = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def _by_length(rope: Rope, dim: int, lengths: jax.Array) -> tuple[jax.Array, float]:
    """Inverse frequencies float32 [..., dim / 2] by sequence ``lengths`` [...]; their factor."""
    if rope.rope_type == "dynamic":
        base = _dynamic_base(rope, dim, rope.original_max_position_embeddings, lengths)
        return 1 / base[..., None] ** (jnp.arange(0, dim, 2, dtype=jnp.float32) / dim), 1.0
    long = (lengths > rope.original_max_position_embeddings)[..., None]
    divisors = jnp.where(long, jnp.float32(rope.long_factor), jnp.float32(rope.short_factor))
    base = rope.theta ** (jnp.arange(0, dim, 2, dtype=jnp.float32) / dim)
    return 1 / (divisors * base), _longrope_scale(rope)


def _frequencies(rope: Rope, dim: int) -> tuple[jax.Array, float]:
    """Inverse frequencies float32 [dim / 2], and the factor on cosines and sines."""
    base = 1 / rope.theta ** (jnp.arange(0, dim, 2, dtype=jnp.float32) / dim)
    if rope.rope_type in ("linear", "proportional"):
        return base / rope.factor, 1.0
    if rope.rope_type == "llama3":
        return _llama3(base, rope), 1.0
    if rope.rope_type == "yarn":
        return _yarn(base, rope, dim), _yarn_scale(rope)
    return base, 1.0


def _dynamic_base(rope: Rope, dim: int, trained: int, length: jax.Array) -> jax.Array:
    """Transformers' NTK-aware base, which grows with a sequence beyond the context."""
    length = jnp.maximum(length, trained).astype(jnp.float32)
    return rope.theta * ((rope.factor * length / trained) - (rope.factor - 1)) ** (dim / (dim - 2))


def _llama3(base: jax.Array, rope: Rope) -> jax.Array:
    """Llama 3.1's frequencies: low ones are divided by the factor, high ones stay.

    Frequencies between are blended.
    """
    wavelength = 2 * math.pi / base
    turns = rope.original_max_position_embeddings / wavelength
    between = (rope.high_freq_factor - rope.low_freq_factor) or 1e-9
    blend = jnp.clip((turns - rope.low_freq_factor) / between, 0, 1)
    return base * (blend + (1 - blend) / rope.factor)


def _yarn(base: jax.Array, rope: Rope, dim: int) -> jax.Array:
    """YaRN's frequencies (Peng et al. 2023, section 3.2).

    A ramp over the dimensions leads from original to interpolated frequencies.
    """

    def dimension(turns: float) -> float:
        ratio = rope.original_max_position_embeddings / (turns * 2 * math.pi)
        return dim * math.log(ratio) / (2 * math.log(rope.theta))

    low, high = dimension(rope.beta_fast), dimension(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    ramp = jnp.clip((jnp.arange(dim // 2, dtype=jnp.float32) - low) / ((high - low) or 0.001), 0, 1)
    return base / rope.factor * ramp + base * (1 - ramp)


def _yarn_scale(rope: Rope) -> float:
    """The factor on cosines and sines that applies YaRN's attention temperature (section 3.4)."""
    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.mscale and rope.mscale_all_dim:
        return _temperature(rope.factor, rope.mscale) / _temperature(rope.factor, rope.mscale_all_dim)
    return _temperature(rope.factor, 1.0)


def _temperature(factor: float, weight: float) -> float:
    """YaRN's factor on queries and on keys, for a context stretched by ``factor``."""
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1


def _longrope_scale(rope: Rope) -> float:
    """LongRoPE's factor on cosines and sines (Ding et al. 2024), from the growth of the context."""
    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.factor <= 1:
        return 1.0
    return math.sqrt(1 + math.log(rope.factor) / math.log(rope.original_max_position_embeddings))
