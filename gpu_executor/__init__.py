"""One process a device: models, layers, kernels and sampling. The only package that imports torch."""
