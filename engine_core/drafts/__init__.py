"""How many tokens guessed ahead a step checks."""
