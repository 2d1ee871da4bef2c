"""The importance of the parts of a model, from its activations on a text.

The measures are those of Minitron (2407.14679, section 2.2) for channels, heads and MLP units, and
the block influence of ShortGPT (2403.03853, section 3.1) for layers.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ...models.attention import Seen
from ...models.config import ModelConfig
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
    results = [jax.tree.map(np.asarray, read(model, jnp.asarray(part))) for part in parts]
    mean = jax.tree.map(lambda *values: np.mean(values, 0), *results)
    return Importance(**mean)


class Masks(NamedTuple):
    """Factors of the parts of a model; 1 keeps a part, and 0 leaves it out.

    Or other numbers, part by part.

    Attributes:
      layers: float32 [L]. channels: float32 [E]. heads: float32 [L, H]. units: float32 [L, F].
    """

    layers: Any
    channels: Any
    heads: Any
    units: Any


def sizes_of(config: ModelConfig) -> Masks:
    """The number of parts that a model has: L, E, H and F."""
    return Masks(config.num_layers, config.hidden_size, config.num_heads, config.intermediate_size)


def whole(config: ModelConfig) -> Masks:
    """Masks that keep all parts."""
    L, E, H, F = sizes_of(config)
    return Masks(jnp.ones(L), jnp.ones(E), jnp.ones((L, H)), jnp.ones((L, F)))


class Passage(NamedTuple):
    """The activations of a layer, float32 [B, S, ...].

    Attributes:
      before, between, after: [E], the stream before attention, before the MLP, and after it.
      normed, read: [E], the inputs of attention and of the MLP, behind their norms.
      attended: [H D], the outputs of the heads. gated: [F], those of the units.
    """

    before: jax.Array
    normed: jax.Array
    attended: jax.Array
    between: jax.Array
    read: jax.Array
    gated: jax.Array
    after: jax.Array


def passages(model: Decoder, tokens: jax.Array, masks: Masks) -> list[Passage]:
    """The passages of tokens int32 [B, S] through all layers, with masks on the parts."""
    B, S = tokens.shape
    positions = jnp.broadcast_to(jnp.arange(S), (B, S))
    nodes = Nodes(positions, Seen.causal(S), jnp.float32, jnp.zeros(B, jnp.int32))
    x = model.embedded(tokens, positions) * masks.channels
    results = []
    for layer, layer_mask, heads, units in zip(model.layers, masks.layers, masks.heads, masks.units):
        before = x
        normed = layer.before("mixer", x)
        mixer = layer.mixer
        mlp = layer.mlp
        attended = mixer.attend(normed, nodes, None, None)[0] * jnp.repeat(heads, model.config.head_dim)
        writes = layer_mask * masks.channels
        x = between = x + writes * linear(attended, mixer.out[...], value_of(mixer.out_bias))
        read = layer.before("mlp", x)
        gated = mlp.units(read) * units
        x = x + writes * linear(gated, mlp.down[...], value_of(mlp.down_bias))
        results.append(Passage(before, normed, attended, between, read, gated, x))
    return results


def _read(model: Decoder, tokens: jax.Array) -> dict[str, jax.Array]:
    """The fields of ``Importance``."""

    def mean(x: jax.Array) -> jax.Array:
        return x.mean((0, 1))

    config = model.config
    channels, moments, layers, heads, units = [], [], [], [], []
    through = passages(model, tokens, whole(config))
    for one in through:
        channels += [mean(jnp.abs(one.normed)), mean(jnp.abs(one.read))]
        moments += [jnp.stack([mean(one.before**2), mean(one.between**2)])]
        lengths = jnp.linalg.norm(one.before, axis=-1) * jnp.linalg.norm(one.after, axis=-1)
        layers += [1 - ((one.before * one.after).sum(-1) / (lengths + 1e-9)).mean()]
        heads += [mean(jnp.linalg.norm(one.attended.reshape(*tokens.shape, config.num_heads, -1), axis=-1))]
        units += [mean(jnp.abs(one.gated))]
    last = through[-1].after
    channels += [mean(jnp.abs(model.last_norm(last)))]
    stacked = dict(layers=layers, heads=heads, units=units, moments=moments)
    means = {name: jnp.stack(values) for name, values in stacked.items()}
    return means | {"channels": jnp.stack(channels).mean(0), "last_moments": mean(last**2)}
