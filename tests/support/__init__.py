"""Helpers that several test files share: tiny models, the loop over a batch of prompts, and plain-Python references."""
