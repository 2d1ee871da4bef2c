"""Trained heads of the usual shapes, for plans without a checkpoint."""

from ...drafters import make_drafter, needs_of
from ...heads import KINDS
from ...loop.drafter import Drafter, TrainedHead
from ...models.config import ModelConfig


def make_planned_drafter(method: str, target: ModelConfig, drafting: dict) -> Drafter:
    """The drafter of a method; a method with a trained head gets a head of the usual shape.

    Args:
      drafting: the method's options.

    Raises RequestError as ``make_drafter`` does.
    """
    needs = needs_of(method)
    head = None
    if isinstance(needs, TrainedHead):
        head = KINDS[needs.kind].usual(target, target.with_layers([0]).like_llama())
    return make_drafter(method, head=head, **drafting)
