"""Executor processes seen from the core: placed, started, watched, replaced."""
