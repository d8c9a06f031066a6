"""What a step runs on: memory, copies and time of a CPU or a GPU."""
