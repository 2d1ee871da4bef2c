"""Kernels for CPUs, which LLVM compiles for the processor at hand."""
