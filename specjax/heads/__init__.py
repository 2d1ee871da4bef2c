"""Trained heads: small modules that draft from what the target computed. Each file holds a family, its configuration and its forward."""

from .base import Head
from .block import BlockConfig, BlockHead
from .eagle import Eagle3Config, Eagle3Head, EagleConfig, EagleHead
from .medusa import MedusaConfig, MedusaHeads
from .mtp import MtpConfig, MtpHead

__all__ = [
    "BlockConfig", "BlockHead", "Eagle3Config", "Eagle3Head", "EagleConfig", "EagleHead", "Head", "MedusaConfig", "MedusaHeads", "MtpConfig", "MtpHead",
]  # fmt: skip
