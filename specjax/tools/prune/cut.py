"""Cuts a smaller model out of a model: the most important layers, channels, heads and MLP units.

The channels of the residual stream are the same in all layers. Heads and units are chosen for each
layer. A norm divides by the size of the whole stream; behind the cut it sees only the channels
that stay, so its weights are scaled by the ratio of the two sizes on the calibration text.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from ...errors import RequestError
from ...models.config import ModelConfig
from ...models.decoder import Decoder
from ...models.layer import Layer
from ..grow.axes import gate_up_rows
from .importance import Importance


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The sizes of a pruned model. None keeps the model's size.

    Attributes:
      layers: the number of layers, or the numbers of the layers to keep.
      width: the number of channels of the residual stream.
      intermediate: the number of units of an MLP.
      heads: the number of query heads. They are taken from as many key heads as divide them.
    """

    layers: int | tuple[int, ...] | None = None
    width: int | None = None
    intermediate: int | None = None
    heads: int | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class _Parts:
    """The parts of one layer that stay, as numbers of the old parts.

    Attributes:
      key_heads: int [K'].
      queries: int [K', G'], for each of these key heads the places of its query heads that stay.
      units: int [F'].
    """

    key_heads: np.ndarray
    queries: np.ndarray
    units: np.ndarray


def prune(model: Decoder, importance: Importance, sizes: Sizes) -> Decoder:
    """The pruned model, in the model's dtype.

    Raises RequestError for sizes that are larger than the model's or do not divide.
    """
    old = model.config
    new = prune_config(old, sizes)
    layers = _best(importance.layers, new.num_layers) if not isinstance(sizes.layers, tuple) else sizes.layers
    channels = _best(importance.channels, new.hidden_size)
    new = new.replace(windows=old.with_layers([int(i) for i in layers]).windows)
    pruned = Decoder(new, jax.random.key(0), model.embed[...].dtype)
    pruned.embed[...] = model.embed[...][:, channels]
    if model.head is not None and pruned.head is not None:
        pruned.head[...] = model.head[...][:, channels]
    assert pruned.norm is not None and model.norm is not None  # Llama has this norm
    pruned.norm[...] = _rescale(model.norm[...], importance.last_moments, channels)
    for i, layer in zip(layers, pruned.layers):
        parts = _choose(importance, i, old, new)
        for name, value in _cut(model.layers[int(i)], old, new, parts, channels).items():
            getattr(_part(layer, name), name)[...] = value
        for norm, moments in zip(("mixer_norm", "mlp_norm"), importance.moments[i]):
            getattr(layer, norm)[...] = _rescale(getattr(model.layers[int(i)], norm)[...], moments, channels)
    return pruned


def prune_config(old: ModelConfig, sizes: Sizes) -> ModelConfig:
    """The configuration of the pruned model.

    Raises RequestError for sizes that do not fit, and for a model whose layers are not Llama's.
    """
    if not old.is_llama_like:
        raise RequestError(f"a model of the family {old.family} cannot be pruned; use one with Llama's layers")
    layers = old.num_layers if sizes.layers is None else sizes.layers
    if isinstance(layers, tuple) and (not layers or min(layers) < 0 or max(layers) >= old.num_layers):
        raise RequestError(f"layers {layers} are not among the model's {old.num_layers}; use 0 to {old.num_layers - 1}")
    count = len(layers) if isinstance(layers, tuple) else layers
    width = sizes.width or old.hidden_size
    units = sizes.intermediate or old.intermediate_size
    heads = sizes.heads or old.num_heads
    limits = {"layers": (count, old.num_layers), "width": (width, old.hidden_size)}
    limits |= {"intermediate": (units, old.intermediate_size), "heads": (heads, old.num_heads)}
    for name, (new, most) in limits.items():
        if not 1 <= new <= most:
            raise RequestError(f"{name} is {new} and the model has {most}; give 1 to {most}")
    key_heads = _key_heads(old, heads)
    if width % heads and old.family == "llama":
        raise RequestError(f"width {width} is no multiple of heads {heads}, so transformers refuses it; change one")
    return old.replace(
        num_layers=count, hidden_size=width, intermediate_size=units, num_heads=heads,
        num_kv_heads=key_heads, kv_copies=1, windows=(),
    )  # fmt: skip


def _key_heads(old: ModelConfig, heads: int) -> int:
    """The most key heads that divide ``heads`` and have enough query heads each."""
    group = old.num_heads // old.num_kv_heads

    def fits(heads: int) -> list[int]:
        return [K for K in range(1, old.num_kv_heads + 1) if heads % K == 0 and heads // K <= group]

    if not fits(heads):
        allowed = ", ".join(str(n) for n in range(1, old.num_heads + 1) if fits(n))
        raise RequestError(
            f"{heads} heads cannot be taken evenly from {old.num_kv_heads} key heads with {group} query heads each; "
            f"give {allowed}"
        )
    return max(fits(heads))


def _choose(importance: Importance, number: int, old: ModelConfig, new: ModelConfig) -> _Parts:
    """The parts of layer ``number`` that stay."""
    by_key_head = importance.heads[number].reshape(old.num_kv_heads, -1)
    best = np.sort(by_key_head, 1)[:, -(new.num_heads // new.num_kv_heads) :]
    key_heads = _best(best.sum(1), new.num_kv_heads)
    queries = np.array([_best(by_key_head[k], best.shape[1]) for k in key_heads])
    return _Parts(key_heads, queries, _best(importance.units[number], new.intermediate_size))


def _cut(layer: Layer, old: ModelConfig, new: ModelConfig, parts: _Parts, channels: np.ndarray) -> dict[str, jax.Array]:
    """The parameters of a layer without its norms of the stream, by name."""
    group = old.num_heads // old.num_kv_heads
    D = old.head_dim
    blocks = [[*(k * (group + 2) + queries), k * (group + 2) + group, k * (group + 2) + group + 1]
              for k, queries in zip(parts.key_heads, parts.queries)]  # fmt: skip
    attended = parts.key_heads[:, None] * group + parts.queries
    gates = np.empty(2 * new.intermediate_size, int)
    gates[gate_up_rows(new)] = gate_up_rows(old)[:, parts.units]

    def entries(numbers) -> np.ndarray:
        """The rows of these heads: D for each."""
        return (np.ravel(numbers)[:, None] * D + np.arange(D)).ravel()

    rows = {"qkv": entries(blocks), "out": channels, "gate_up": gates, "down": channels}
    columns = {"qkv": channels, "out": entries(attended), "gate_up": channels, "down": parts.units}
    values = {}
    for name in rows:
        part = _part(layer, name)
        values[name] = getattr(part, name)[...][rows[name]][:, columns[name]]
        if (bias := getattr(part, f"{name}_bias")) is not None:
            values[f"{name}_bias"] = bias[...][rows[name]]
    for name in ("q_norm", "k_norm"):
        if (norm := getattr(layer.mixer, name)) is not None:
            values[name] = norm[...]
    return values


def _part(layer: Layer, name: str):
    """The sub-layer that has the parameter ``name``."""
    return layer.mixer if hasattr(layer.mixer, name) else layer.mlp


def _rescale(weight: jax.Array, moments: np.ndarray, channels: np.ndarray) -> jax.Array:
    """The weights of a norm for ``channels``, whose size behind the norm stays."""
    ratio = np.sqrt(moments[channels].mean() / moments.mean())
    return (weight[channels].astype(jnp.float32) * ratio).astype(weight.dtype)


def _best(values: np.ndarray, count: int) -> np.ndarray:
    """The places of the ``count`` largest values, in ascending order."""
    return np.sort(np.argsort(-np.asarray(values), kind="stable")[:count])
