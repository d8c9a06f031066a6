"""Writing quantized checkpoints, the inverse of reading them: one module a packing."""
