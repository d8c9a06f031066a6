"""Text to token ids and back, from tokenizer.json, GGUF metadata or SentencePiece files."""
