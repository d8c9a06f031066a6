"""Many short requests, some of them aborted, broken off or malformed: `python -m tools.soak`."""
