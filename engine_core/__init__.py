"""Scheduler, KV block management, prefix cache and supervision of the executors."""
