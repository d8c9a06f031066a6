"""Checkpoint formats, unpacked once at load into the canonical layouts."""
