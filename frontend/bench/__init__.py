"""Benchmarks: load on a server, an engine without one, its start, and single kernels."""
