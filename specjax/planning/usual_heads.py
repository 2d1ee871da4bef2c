"""Trained heads of the usual shapes, for plans without a checkpoint."""

import dataclasses
from collections.abc import Callable

from ..drafter import Drafter, TrainedHead
from ..drafters import make_drafter, needs_of
from ..errors import RequestError
from ..heads import AssistantConfig, BlockConfig, Eagle3Config, EagleConfig, HydraConfig, MedusaConfig, MtpConfig
from ..heads.base import HeadConfig
from ..models.config import ModelConfig
from ..models.mixers import AttentionConfig


def make_planned_drafter(method: str, target: ModelConfig, drafting: dict) -> Drafter:
    """The drafter of a method; a method with a trained head gets a head of the usual shape.

    Args:
      drafting: the method's options.

    Raises RequestError as ``make_drafter`` does.
    """
    needs, head = needs_of(method), None
    if isinstance(needs, TrainedHead):
        head = _HEADS[needs.kind](target, target.with_layers([0]).like_llama())
    return make_drafter(method, head=head, **drafting)


def _medusa(target: ModelConfig, layer: ModelConfig) -> HeadConfig:
    return MedusaConfig(target.hidden_size, target.num_layers, target.vocab_size, num_heads=4)


def _hydra(target: ModelConfig, layer: ModelConfig) -> HeadConfig:
    return HydraConfig(target.hidden_size, target.num_layers, target.vocab_size, num_heads=4)


def _eagle(target: ModelConfig, layer: ModelConfig) -> HeadConfig:
    return EagleConfig(layer, target_layers=target.num_layers)


def _eagle3(target: ModelConfig, layer: ModelConfig) -> HeadConfig:
    """The taps of the paper, and the 32,000 likeliest tokens."""
    L = target.num_layers
    taps = min(2, L), L // 2, max(L - 3, 0)
    return Eagle3Config(layer, target.hidden_size, L, taps, draft_vocab_size=min(32000, target.vocab_size))


def _mtp(target: ModelConfig, layer: ModelConfig) -> HeadConfig:
    return MtpConfig(layer, target_layers=target.num_layers)


def _block(target: ModelConfig, layer: ModelConfig) -> HeadConfig:
    """Five layers and blocks of eight places, as DFlash has them."""
    L = target.num_layers
    taps = min(1, L), L // 2, max(L - 2, 0)
    layers = layer.replace(num_layers=5, windows=layer.windows * 5)
    return BlockConfig(layers, target.hidden_size, L, taps, mask_token=0, block_size=8)


def _assistant(target: ModelConfig, layer: ModelConfig) -> HeadConfig:
    """Four layers of a sixth of the target's width. Three read a layer with a window, if the target has any."""
    last = {}
    for one in target.layers:
        if isinstance(one.mixer, AttentionConfig) and one.mixer.reads is None:
            last[one.mixer.scores.window is None] = dataclasses.replace(
                one.mixer, reads=0, sinks=False, output_gate=False
            )
    if not last:
        raise RequestError("the target has no keys of heads, which an assistant reads; plan another method")
    whole = last.get(True, last.get(False))
    width = max(target.hidden_size // 6, 1)
    sizes = dict(num_layers=4, hidden_size=width, intermediate_size=8 * width, windows=())
    layers = layer.replace(mixers=(last.get(False, whole),) * 3 + (whole,), **sizes)
    return AssistantConfig(layers, target.hidden_size, target.num_layers)


_HEADS: dict[str, Callable[[ModelConfig, ModelConfig], HeadConfig]] = {
    "medusa": _medusa,
    "hydra": _hydra,
    "eagle": _eagle,
    "eagle3": _eagle3,
    "mtp": _mtp,
    "block": _block,
    "assistant": _assistant,
}
"""The head of each kind, for a target and a layer like the target's."""
