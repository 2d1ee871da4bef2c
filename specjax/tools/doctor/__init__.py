"""Predicts the speed-up of a method, and names the reasons of a loss: ``specjax doctor``."""

from .examination import examine
from .report import answer, table

__all__ = ["answer", "examine", "table"]
