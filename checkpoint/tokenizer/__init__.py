"""A model's vocabulary as its files state it: tokenizer.json, GGUF metadata or SentencePiece files."""
