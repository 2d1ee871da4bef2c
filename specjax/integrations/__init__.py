"""Stages for other libraries that run many prompts over many machines. Each needs its own extra."""
