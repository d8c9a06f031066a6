"""What the metadata of a GGUF file says of a model, by subject."""
