"""What clients of the core see: sessions, calls, outputs, pictures of the engine."""
