"""Canonical weight layouts and the linear products over them."""
