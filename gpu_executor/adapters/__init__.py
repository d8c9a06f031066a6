"""LoRA adapters on one rank: reading them, keeping them, and which tokens of a step they are for."""
