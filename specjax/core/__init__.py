"""Parts that run on the device and decide nothing: trees, caches, sampling, a batch's state."""
