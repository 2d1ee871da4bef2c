"""How much the parts of a model matter, from its activations on a text.

The measures are those of Minitron (2407.14679, section 2.2) for channels, heads and MLP units, and
the block influence of ShortGPT (2403.03853, section 3.1) for layers.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from ...models.attention import Seen
from ...models.decoder import Decoder
from ...models.layer import Nodes
from ...models.layers import linear, value_of

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
    positions = jnp.broadcast_to(jnp.arange(S), (B, S))
    nodes = Nodes(positions, Seen.causal(S), jnp.float32, jnp.zeros(B, jnp.int32))
    x = model.embedded(tokens, positions)
    channels, moments, layers, heads, units = [], [], [], [], []
    for layer in model.layers:
        before, normed, mixer, mlp = x, layer.before("mixer", x), layer.mixer, layer.mlp
        attended, _ = mixer.attend(normed, nodes, None, None)
        x = x + linear(attended, mixer.out[...], value_of(mixer.out_bias))
        between, read = x, layer.before("mlp", x)
        gated = mlp.units(read)
        x = x + linear(gated, mlp.down[...], value_of(mlp.down_bias))

        channels += [mean(jnp.abs(normed)), mean(jnp.abs(read))]
        moments += [jnp.stack([mean(before**2), mean(between**2)])]
        cosine = (before * x).sum(-1) / (jnp.linalg.norm(before, axis=-1) * jnp.linalg.norm(x, axis=-1) + 1e-9)
        layers += [1 - cosine.mean()]
        heads += [mean(jnp.linalg.norm(attended.reshape(B, S, config.num_heads, -1), axis=-1))]
        units += [mean(jnp.abs(gated))]
    channels += [mean(jnp.abs(model.last_norm(x)))]
    stacked = dict(layers=layers, heads=heads, units=units, moments=moments)
    found = {name: jnp.stack(values) for name, values in stacked.items()}
    return found | {"channels": jnp.stack(channels).mean(0), "last_moments": mean(x**2)}
