"""LoRA adapters as PEFT writes them: the configuration, and what its tensors are called."""
