"""One model on several ranks: who holds what, and how they speak to each other within a step."""
