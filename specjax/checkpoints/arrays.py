"""Makes a Decoder of another library's arrays, by a table of names and without a checkpoint."""

import re
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
from flax import nnx

from ..errors import RequestError
from ..models.config import ModelConfig
from ..models.decoder import Decoder
from .blocks import Names, blocks, name_of, source_tensors
from .placement import Placement
from .shape_check import check_tensors
from .tensors import abstract_decoder, dotted

ToRows = Callable[[jax.Array, int | None], jax.Array]
"""Turns a source array into rows [out, in], given the number of the layer, None outside layers."""


def decoder_from_arrays(
    config: ModelConfig,
    arrays: Mapping[str, jax.typing.ArrayLike],
    names: Names,
    to_rows: Mapping[str, ToRows] | None = None,
    dtype=None,
    mesh: jax.sharding.Mesh | None = None,
) -> Decoder:
    """A Decoder with the parameters of another library, such as a trainer's.

    Arrays that are on a device stay there. Without ``mesh`` the function may be traced by
    ``jax.jit``.

    Args:
      config: the shapes of the model.
      arrays: the arrays by name. ``flax.traverse_util.flatten_dict(params, sep=".")`` makes names
        of nested dictionaries.
      names: the names of each parameter's arrays, in the form of ``families.NAMES``: N stands for
        the number of the layer. "layers.N.mixer.qkv" takes queries, keys and values [out, in];
        "layers.N.mlp.gate_up" takes the gate and up projections. As in Hugging Face checkpoints,
        heads follow one another in the rows, and rotary positions pair the two halves of a head.
      to_rows: functions for some of the names in ``names``. A function makes rows [out, in] of its
        array: it transposes a kernel [in, out], merges split heads, or picks one layer of an array
        that stacks all layers.
      dtype: one of ``config.DTYPES``; by default the configuration's.
      mesh: devices to split the parameters over.

    Raises RequestError for a parameter without names or a mesh that does not divide the model.
    Raises CheckpointError, which lists every array that is missing, is unused, or has a wrong shape
    or type.
    """
    # 1. The parameters of the model, abstract.
    to_rows = to_rows or {}
    placement = Placement(mesh, dtype=dtype)
    config = placement.split(config)
    graph, abstract = nnx.split(abstract_decoder(config, placement.dtype))
    params = [(path, dotted(path), param) for path, param in nnx.to_flat_state(abstract)]
    arrays = {name: jnp.asarray(array) for name, array in arrays.items()}

    # 2. The rows of each array, by the names of the table.
    table = {}
    rows = {}
    unused = set(arrays)
    for _, path, _ in params:
        numbers = re.findall(r"\d+", path)
        pattern = re.sub(r"\d+", "N", path)
        layer = int(numbers[0]) if numbers else None
        if pattern not in names:
            raise RequestError(f"names has no entry for {pattern!r}, a parameter of the model; name its arrays")
        table[path] = []
        for entry, tensor in zip(names[pattern], source_tensors(path, names)):
            listed = name_of(entry)
            name = tensor.name
            # In a layer, a name without N belongs to an array that stacks all layers.
            part = name if listed != name or layer is None else f"{name}[{layer}]"
            table[path].append(tensor._replace(name=part))
            unused.discard(name)
            if name in arrays:
                rows[part] = to_rows[listed](arrays[name], layer) if listed in to_rows else arrays[name]

    # 3. The checks, and the parameters.
    pieces = {path: blocks(path, param.shape[0], table, config) for _, path, param in params}
    shapes = {name: (x.shape, str(x.dtype)) for name, x in (rows | {name: arrays[name] for name in unused}).items()}
    check_tensors(shapes, [(param, pieces[path]) for _, path, param in params], "arrays", "the configuration")

    def stack(path: str, param: nnx.Param) -> jax.Array:
        value = jnp.concatenate([block.read(rows[block.name]) for block in pieces[path]]).astype(param.dtype)
        return value if mesh is None else jax.device_put(value, placement.sharding(param))

    loaded = [(where, param.replace(stack(path, param))) for where, path, param in params]
    return nnx.merge(graph, nnx.from_flat_state(loaded))
