"""pagewire: an event-driven actor engine that serves large language models."""
