"""The dtype of keys and values, by the weights and the device."""

import jax
import jax.numpy as jnp

from ..checkpoints.load import LanguageModel
from ..core.stored_rows import KV_SCHEMES, EightBits, Halves
from ..models.quantised_weights import Quantised
from ..parallel import mesh_of


def cache_dtype(target: LanguageModel):
    """The dtype of the target's keys and values: its ``kv_quantize``, else that of its weights.

    On a CPU bfloat16 is ``Halves``, and float16 becomes float32.
    """
    dtype = dtype_beside(target.model)
    if target.kv_quantize is not None:
        return EightBits(KV_SCHEMES[target.kv_quantize], jnp.dtype(dtype))
    is_half = dtype == jnp.float32 and weights_dtype(target.model) == jnp.bfloat16
    return Halves() if is_half and target.config.encoder is None else dtype


def dtype_beside(parameters):
    """The dtype in which attention multiplies keys and values: that of the weights, on CPU float32.

    CPUs have no fast products of 16-bit keys and values.
    """
    mesh = mesh_of(parameters)
    if (jax.default_backend() if mesh is None else mesh.devices.flat[0].platform) == "cpu":
        return jnp.dtype(jnp.float32)
    return weights_dtype(parameters)


def weights_dtype(parameters):
    """The dtype of a model's weights, before they are packed."""
    leaves = jax.tree.leaves(parameters, is_leaf=lambda leaf: isinstance(leaf, Quantised))
    return next(leaf.dtype for leaf in leaves if jnp.issubdtype(leaf.dtype, jnp.floating))
