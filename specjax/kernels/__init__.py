"""Kernels for CPUs and GPUs, where XLA's own products and attention are slower.

``models.layers`` and ``models.attention`` choose them. XLA computes the same on every other device.
"""
