"""Kernels for processors and GPUs, where XLA's own products and attention are slower."""
