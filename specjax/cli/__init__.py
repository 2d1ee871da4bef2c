"""The command line: one file for each command, and the parts that the commands share."""

from .main import main

__all__ = ["main"]
