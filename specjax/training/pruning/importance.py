"""How much the parts of a model matter, from its activations on a text.

The measures are those of Minitron (2407.14679, section 2.2) for channels, heads and MLP units, and
the block influence of ShortGPT (2403.03853, section 3.1) for layers.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from ...models.attention import Seen, within
from ...models.config import ModelConfig
from ...models.decoder import Decoder
from ...models.layers import linear, lookup, rms_norm, rotary, value_of

_WINDOWS = 4
"""The number of windows that are read together."""


@dataclasses.dataclass(frozen=True, eq=False)
class Importance:
    """The importance of each part; larger is more important.

    Attributes:
      layers: float [L], one minus the cosine between the input and the output of a layer.
      channels: float [E], the mean size of a channel behind the norms.
      heads: float [L, H], the mean norm of a head's output.
      units: float [L, F], the mean size of a unit of the MLP.
      moments: float [L, 2, E], the mean square of each channel before the norms of a layer.
      last_moments: float [E], the same before the last norm.
    """

    layers: np.ndarray
    channels: np.ndarray
    heads: np.ndarray
    units: np.ndarray
    moments: np.ndarray
    last_moments: np.ndarray


def measure_importance(model: Decoder, windows: np.ndarray) -> Importance:
    """The importance of a model's parts on windows of tokens, int32 [B, S]."""
    read = jax.jit(_read)
    parts = np.array_split(windows, max(1, len(windows) // _WINDOWS))
    found = [jax.tree.map(np.asarray, read(model, jnp.asarray(part))) for part in parts]
    mean = jax.tree.map(lambda *values: np.mean(values, 0), *found)
    return Importance(**mean)


def _read(model: Decoder, tokens: jax.Array) -> dict[str, jax.Array]:
    config, mean = model.config, lambda x: x.mean((0, 1))
    B, S = tokens.shape
    x = lookup(model.embed[...], tokens).astype(jnp.float32)
    channels, moments, layers, heads, units = [], [], [], [], []
    for i, layer in enumerate(model.layers):
        before = x
        assert layer.attention_norm is not None  # only layers of heads may lack it
        normed = rms_norm(x, layer.attention_norm[...], config.norm_eps)
        attended = _attend(layer, normed, config, i)
        x = x + linear(attended, layer.out[...], value_of(layer.out_bias))
        between, gated = x, layer.units(x, config)
        x = x + linear(gated, layer.down[...], value_of(layer.down_bias))

        channels += [mean(jnp.abs(normed)), mean(jnp.abs(rms_norm(between, layer.mlp_norm[...], config.norm_eps)))]
        moments += [jnp.stack([mean(before**2), mean(between**2)])]
        cosine = (before * x).sum(-1) / (jnp.linalg.norm(before, axis=-1) * jnp.linalg.norm(x, axis=-1) + 1e-9)
        layers += [1 - cosine.mean()]
        heads += [mean(jnp.linalg.norm(attended.reshape(B, S, config.num_heads, -1), axis=-1))]
        units += [mean(jnp.abs(gated))]
    channels += [mean(jnp.abs(rms_norm(x, model.norm[...], config.norm_eps)))]
    stacked = dict(layers=layers, heads=heads, units=units, moments=moments)
    found = {name: jnp.stack(values) for name, values in stacked.items()}
    return found | {"channels": jnp.stack(channels).mean(0), "last_moments": mean(x**2)}


def _attend(layer, normed: jax.Array, config: ModelConfig, number: int) -> jax.Array:
    """The outputs of the heads, float32 [B, S, H * D], in a text without a cache."""
    B, S, _ = normed.shape
    positions, seen = jnp.broadcast_to(jnp.arange(S), (B, S)), Seen.causal(S)
    window = config.windows[number] if config.windows else None
    if window is not None:
        seen = within(seen, positions, positions, window)
    length, angles = jnp.zeros(B, jnp.int32), rotary(positions, config)
    return layer.attend(normed, config, angles, positions, seen, None, length, None, window, jnp.float32)[0]
