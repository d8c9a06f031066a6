"""Benchmarks without a server: an engine of the command's own, its start, and single kernels."""
