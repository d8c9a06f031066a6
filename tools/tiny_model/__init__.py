"""Tiny random checkpoints of every supported family, for tests and trials."""
