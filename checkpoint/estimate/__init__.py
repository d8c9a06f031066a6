"""What serving a model costs on paper: memory, bytes and operations of a step, and how many devices it takes."""
