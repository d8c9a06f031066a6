"""Structured output: grammars are compiled in a helper process, followed in the core, and kept by masks of tokens."""
