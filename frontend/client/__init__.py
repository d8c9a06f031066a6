"""Clients of the engine core; they need pyzmq and msgspec alone."""
