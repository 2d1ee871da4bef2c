"""Several draft models, each trained where the earlier ones fail (SpecInfer, 2305.09781)."""

import dataclasses

from ..numbers import number
from .draft import DraftLoss, DraftShape
from .shared import Kind


@dataclasses.dataclass(frozen=True)
class BoostShape(DraftShape):
    """Draft models of one shape.

    Attributes:
      drafts: the number of draft models. The other attributes are those of ``DraftShape``.
    """

    drafts: int = number(3, 2, 16)

    def one(self) -> DraftShape:
        """The shape of a single draft."""
        fields = (field.name for field in dataclasses.fields(DraftShape))
        return DraftShape(**{name: getattr(self, name) for name in fields})


KIND = Kind("boost", BoostShape, DraftLoss, is_head=False)
