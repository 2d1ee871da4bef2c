"""The layouts of published heads, and the search for the layout of a checkpoint.

A new layout is a class in this folder, listed in ``_CLASSES``.
"""

from ...errors import CheckpointError, ConfigError
from ...heads import HeadConfig
from .assistant import AssistantLayout
from .base import Layout, RawCheckpoint
from .block import DFlashLayout
from .eagle import EagleLayout
from .eagle3 import Eagle3Layout
from .hydra import HydraLayout
from .medusa import MedusaLayout
from .mtp import DeepSeekLayout, MimoLayout, MtpLayout
from .speculators import Speculators, SpeculatorsEagle3, SpeculatorsMtp, SpeculatorsPEagle
from .speculators_block import SpeculatorsDFlash, SpeculatorsDFlash2, SpeculatorsDSpark, SpeculatorsXPress

__all__ = ["LAYOUTS", "RawCheckpoint", "Layout", "default_layout", "find_layout"]

_CLASSES = (
    SpeculatorsEagle3,
    SpeculatorsPEagle,
    SpeculatorsMtp,
    SpeculatorsDFlash,
    SpeculatorsDSpark,
    SpeculatorsDFlash2,
    SpeculatorsXPress,
    AssistantLayout,
    DFlashLayout,
    Eagle3Layout,
    HydraLayout,
    MedusaLayout,
    MtpLayout,
    DeepSeekLayout,
    MimoLayout,
    EagleLayout,
)
"""Layouts in the order in which ``find_layout`` tries them.

A class stands before the classes whose ``matches`` would also accept its heads.
"""

LAYOUTS: dict[str, Layout] = {layout.name: layout() for layout in _CLASSES}
"""All layouts by name, in the order of ``_CLASSES``."""


def default_layout(config: HeadConfig) -> Layout:
    """The layout in which a head of this configuration is saved by default."""
    return next(layout for layout in LAYOUTS.values() if layout.kind == config.kind and layout.is_default(config))


def find_layout(checkpoint: RawCheckpoint) -> Layout | None:
    """The layout of a head's checkpoint; None for the checkpoint of a language model alone.

    Raises ConfigError for a kind of head that is known but not supported, and CheckpointError for a
    checkpoint of anything else.
    """
    _refuse_unsupported(checkpoint)
    for layout in LAYOUTS.values():
        if layout.matches(checkpoint):
            return layout
    if checkpoint.language_model:
        return None
    names = ", ".join(sorted(checkpoint.tensors)[:4]) or "none"
    kind = ", ".join(checkpoint.architectures) or checkpoint.raw.get("model_type")
    raise CheckpointError(
        f"{checkpoint.where}: neither a language model nor a known head ({str(kind)[:60]}; tensors {names}); "
        f"docs/heads.md lists the layouts of heads"
    )


def _refuse_unsupported(checkpoint: RawCheckpoint) -> None:
    """Raises ConfigError for heads that are known but not supported."""
    kind = checkpoint.raw.get("speculators_model_type")

    def ends(*suffixes):
        return not checkpoint.language_model and any(name.endswith(suffixes) for name in checkpoint.tensors)

    known = any(isinstance(layout, Speculators) and layout.type == kind for layout in LAYOUTS.values())
    reasons = {
        f"the speculators type {str(kind)[:60]!r}": kind is not None and not known,
        "ReDrafter (a recurrent head)": checkpoint.begins("rnn_u", "rnn_w", "drafter.rnn"),
        "a head with multi-head latent attention": ends("kv_a_proj_with_mqa.weight")
        and not LAYOUTS["deepseek"].matches(checkpoint),
        "a quantised head": ends("weight_scale_inv", ".weight_scale", ".qweight"),
    }
    for reason, holds in reasons.items():
        if holds:
            raise ConfigError(
                f"{checkpoint.where}: {reason} is not supported; docs/heads.md lists the layouts that are"
            )
