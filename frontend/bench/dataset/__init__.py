"""The requests of a benchmark: where they come from and how long they are."""
