"""`pagewire chat`: a conversation with a model, in the terminal."""
