"""`pagewire top`: a server's figures, as they change."""
