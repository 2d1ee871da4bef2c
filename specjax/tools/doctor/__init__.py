"""Whether drafting helps, by how much, and if not, why: ``specjax doctor``."""

from .examination import examine
from .report import answer, table

__all__ = ["answer", "examine", "table"]
