"""Linear layers of quantized safetensors checkpoints: several stored tensors a weight, one module a packing."""
