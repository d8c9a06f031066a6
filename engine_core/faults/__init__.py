"""Which request ends executors or fails a step, and what is done about it."""
