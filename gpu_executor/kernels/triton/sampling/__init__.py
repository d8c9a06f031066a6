"""Kernels at the end of a step: best tokens, penalties, filters, draws and logprobs over rows of logits."""
