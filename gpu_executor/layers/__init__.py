"""Parallel layers: they take forward metadata as an argument and ask a QuantMethod for weights."""
