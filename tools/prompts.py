"""Twenty prompts of different lengths, subjects and scripts, for checks on the packaged model."""

from __future__ import annotations

PROMPTS = [
    "The capital of France is",
    "Once upon a time, in a village by the sea,",
    "def fibonacci(n):\n",
    "Water boils at",
    "List three fruits:\n1.",
    "The three laws of motion were formulated by",
    "Dear Sir or Madam,\n\nI am writing to",
    "Q: What is 17 + 25?\nA:",
    "In machine learning, gradient descent is",
    "Die Hauptstadt von Deutschland ist",
    "SELECT name, age FROM users WHERE",
    "The quick brown fox jumps over the lazy dog. " * 6,
    "La mer est calme et le soleil",
    "Photosynthesis is the process by which",
    "import numpy as np\n\nx = np.array([1, 2, 3])\nprint(",
    "My favourite book is about a detective who",
    "Ingredients: flour, sugar, eggs, butter.\nMethod: First,",
    "If all cats are mammals and all mammals are animals, then",
    "Emojis are fun: \U0001f600 \U0001f680 \U0001f389 and",
    "Long ago the river ran through the valley, and the people who lived there told stories about the mountain. " * 4,
]
