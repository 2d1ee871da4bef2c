"""The command line: one file a command, and the parser of their flags."""

from .main import main

__all__ = ["main"]
