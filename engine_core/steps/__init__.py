"""A step: what fits it, how it is told to executors, what it took."""
