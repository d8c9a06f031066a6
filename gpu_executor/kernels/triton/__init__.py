"""Kernels for GPUs, written in Triton; on a CPU they are interpreted, which is what tests do."""
