"""Mixtures of experts on a GPU: experts are chosen, their tokens brought together, multiplied and added up there."""
