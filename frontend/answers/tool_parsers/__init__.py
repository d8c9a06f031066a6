"""How models write calls of tools: one incremental parser a format."""
