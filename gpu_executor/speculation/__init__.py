"""Guesses of what rows draw next, and which of them were right."""
