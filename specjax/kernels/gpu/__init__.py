"""Kernels for NVIDIA GPUs, written in Pallas."""
