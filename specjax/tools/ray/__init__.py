"""Runners of other libraries that spread prompts over many machines. Each needs its own extra."""
