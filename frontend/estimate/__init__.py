"""`pagewire estimate`: the question out of flags, and the answers as text or JSON."""
