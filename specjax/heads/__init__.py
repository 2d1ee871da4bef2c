"""Trained heads: small modules that draft from hidden states of the target.

Each kind has a file with its configuration, its module and ``KIND``. To add a kind, write a file in
this folder and add its name to the list below.
"""

from . import assistant, block, eagle, eagle3, hydra, medusa, mtp
from .assistant import Assistant, AssistantConfig
from .base import Head, HeadConfig, HeadModule, Kind
from .block import BlockConfig, BlockHead
from .eagle import EagleConfig, EagleHead
from .eagle3 import Eagle3Config, Eagle3Head
from .hydra import HydraConfig, HydraHeads
from .medusa import MedusaConfig, MedusaHeads
from .mtp import MtpConfig, MtpHead

KINDS: dict[str, Kind] = {file.KIND.name: file.KIND for file in (medusa, hydra, eagle, eagle3, mtp, block, assistant)}
"""All kinds of heads by their names."""

__all__ = [
    "KINDS", "Assistant", "AssistantConfig", "BlockConfig", "BlockHead", "Eagle3Config", "Eagle3Head", "EagleConfig",
    "EagleHead", "Head", "HeadConfig", "HeadModule", "HydraConfig", "HydraHeads", "Kind", "MedusaConfig",
    "MedusaHeads", "MtpConfig", "MtpHead",
]  # fmt: skip
