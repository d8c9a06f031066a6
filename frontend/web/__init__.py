"""The web page: its files, and what its view of the engine is fed by."""
