"""Hugging Face directories: ModelConfig out of config.json and its companions."""
