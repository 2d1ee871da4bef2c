"""From a request to arrays: prompts, sampling options, constraints, stop strings, limits.

``options`` has the options, and ``batch`` makes the arrays of a batch.
"""
