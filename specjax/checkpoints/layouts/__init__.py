"""Layouts of published heads, and which of them a checkpoint has. Adding one: a class in this folder and a line in ``LAYOUTS``."""

from ...errors import CheckpointError, ConfigError
from .base import Found, Layout
from .block import DFlash
from .eagle import Eagle, Eagle3, Speculators
from .medusa import Hydra, Medusa
from .mtp import DeepSeek, MiMo, Mtp

__all__ = ["LAYOUTS", "Found", "Layout", "default", "layout_of"]

LAYOUTS: dict[str, Layout] = {
    layout.name: layout for layout in (Speculators(), DFlash(), Eagle3(), Hydra(), Medusa(), Mtp(), DeepSeek(), MiMo(), Eagle())
}
"""By name, in the order in which they are tried."""

_DEFAULT = {"eagle": "eagle", "eagle3": "eagle3", "medusa": "medusa", "hydra": "hydra", "block": "dflash", "mtp": "mtp"}


def default(config) -> str:
    """The layout that a head of this configuration is written in unless it was loaded from another."""
    return "deepseek" if getattr(config, "modules", 1) > 1 else _DEFAULT[config.kind]


def layout_of(found: Found) -> Layout | None:
    """The layout of a head's checkpoint, None for one of a language model alone.

    Raises ConfigError for heads that are known and not supported, CheckpointError for what is neither.
    """
    _refuse(found)
    for layout in LAYOUTS.values():
        if layout.matches(found):
            return layout
    if found.language_model:
        return None
    names = ", ".join(sorted(found.tensors)[:4]) or "none"
    kind = ", ".join(map(str, found.raw.get("architectures") or [found.raw.get("model_type")]))
    raise CheckpointError(
        f"{found.where}: neither a language model nor a head that is known ({kind}; tensors {names}); docs/heads.md lists layouts"
    )


def _refuse(found: Found) -> None:
    """Raises ConfigError for heads that look like others and are not."""
    kind = found.raw.get("speculators_model_type")
    ends = lambda *ends: not found.language_model and any(name.endswith(ends) for name in found.tensors)
    reasons = {
        f"the speculators type {kind!r}": kind not in (None, "eagle3"),
        "DFlash 2 (convolutions and a path selector)": found.architecture("DFlash2") or found.begins("selector", "path_selector"),
        "ReDrafter (a recurrent head)": found.begins("rnn_u", "rnn_w", "drafter.rnn"),
        "a head with multi-head latent attention": ends("kv_a_proj_with_mqa.weight"),
        "a quantised head": ends("weight_scale_inv", ".weight_scale", ".qweight"),
    }
    for reason, given in reasons.items():
        if given:
            raise ConfigError(f"{found.where}: {reason} is not supported; docs/heads.md lists what is")
