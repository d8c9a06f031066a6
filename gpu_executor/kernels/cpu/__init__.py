"""Compiled CPU kernels: csrc holds the C++ library, the modules here load and call it."""
