"""What can be trained: for each kind the shape of the drafter and its loss. Adding one: a shape, a loss and a line here."""

from typing import NamedTuple

from . import head_losses
from .shapes import BlockShape, DraftShape, Eagle3Shape, EagleShape, HydraShape, MedusaShape, MtpShape


class Kind(NamedTuple):
    """A kind of drafter: its shape and its loss."""

    shape: type
    loss: type


KINDS = {
    "medusa": Kind(MedusaShape, head_losses.MedusaLoss),
    "hydra": Kind(HydraShape, head_losses.MedusaLoss),
    "eagle": Kind(EagleShape, head_losses.EagleLoss),
    "eagle3": Kind(Eagle3Shape, head_losses.Eagle3Loss),
    "mtp": Kind(MtpShape, head_losses.MtpLoss),
    "block": Kind(BlockShape, head_losses.BlockLoss),
    "draft": Kind(DraftShape, head_losses.DraftLoss),
}
