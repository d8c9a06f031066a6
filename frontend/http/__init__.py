"""The HTTP server around the OpenAI handlers: sockets, streams, health, metrics."""
