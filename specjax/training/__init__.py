"""Trains draft models and heads: on texts, on a log of rounds, or while the target generates.

``run`` follows a recipe (``recipe``), ``kinds`` has a file for each kind of drafter, and ``loop``
makes the steps.
"""
