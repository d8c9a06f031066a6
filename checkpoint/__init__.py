"""What a model is, without torch: its files, its configuration, its GGUF header."""
