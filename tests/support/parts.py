"""Models whose parts are compiled, instead of the whole models. Most models share them, which is several times faster."""

import jax
import pytest

from specjax.models import cross_attention as cross
from specjax.models import decoder, encoder, layer, per_layer
from specjax.models.feed_forwards import experts, gated, plain
from specjax.models.mixers import DeltaRule, LatentAttention, Mamba2, attention, delta_rule, latent, mamba2, short_conv

PARTS = {
    "rotate_and_attend": (("scores", "dtype"), (attention,)),
    "attend": ("scores", (attention, latent, cross)),
    "normalize": ("config", (decoder, layer, per_layer, attention, encoder)),
    "linear": ((), (decoder, per_layer, attention, experts, gated, plain, latent, cross)),
    "lookup": ((), (decoder, per_layer)),
    "convolve": ((), (delta_rule, mamba2, short_conv)),
    "route": ("config", (experts,)),
    "multiply_chosen": ("clamp", (experts,)),
}
"""The functions that are compiled, with their static arguments and the modules that call them."""

METHODS = {
    LatentAttention: ("_project", "_expand"),
    DeltaRule: ("_strengths", "_update"),
    Mamba2: ("_read",),
    gated.GatedMlp: ("__call__",),
    plain.PlainMlp: ("__call__",),
    per_layer.PerLayerInputs: ("__call__",),
    per_layer.PerLayerInput: ("__call__",),
}
"""The methods that are compiled."""


def compile_parts(patch: pytest.MonkeyPatch) -> None:
    """Replaces the parts by compiled ones until ``patch`` is undone."""
    for kind, names in METHODS.items():
        for name in names:
            patch.setattr(kind, name, jax.jit(getattr(kind, name)))
    for name, (static, modules) in PARTS.items():
        compiled = jax.jit(getattr(modules[0], name), static_argnames=static)
        for module in modules:
            patch.setattr(module, name, compiled)
