"""Streams under a server whose processes are killed and stopped: `python -m tools.chaos`."""
