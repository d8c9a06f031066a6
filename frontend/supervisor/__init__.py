"""Whoever starts an engine: find the model, start the core, watch it, stop it in order."""
