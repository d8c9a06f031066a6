"""Attention by libraries for GPUs, where a user asks for one that is installed."""
