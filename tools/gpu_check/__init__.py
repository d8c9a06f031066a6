"""The check of a GPU: are the kernels right, and how near do they and the engine come to its limits."""
