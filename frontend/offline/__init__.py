"""LLM: the engine in the user's own program, without a server."""
