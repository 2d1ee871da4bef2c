"""The parts that run on the device and decide nothing: trees, caches, sampling, the state of a batch."""
