"""Grows a model to a larger shape: the shape, the places of old entries, the file writer."""
