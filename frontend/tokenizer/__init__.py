"""Text to token ids and back, with what a server needs to know about single tokens."""
