"""The parts of ``checkpoints.grow``: the larger shape, the places of old entries, the file writer."""
