"""The acceptance rules, one file for each way to walk a tree, with its records in ``RULES``."""

from ..core.verdict import Verdict
from . import chains, seeded, several_paths, siblings, soft, traversal, walks
from .rule import Drawn, Rule, as_rule

__all__ = ["RULES", "Drawn", "Rule", "Verdict", "as_rule"]

_FILES = (walks, chains, siblings, traversal, several_paths, seeded, soft)

RULES: dict[str, Rule] = {rule.name: rule for file in _FILES for rule in file.RULES}
"""The rules by their public names."""
