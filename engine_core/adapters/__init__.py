"""LoRA adapters as the core knows them: which there are, who loads them, and whose requests run with one."""
