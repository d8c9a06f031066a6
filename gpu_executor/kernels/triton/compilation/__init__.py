"""Compiling the launch table without a GPU: what each row costs on each device, and whether it fits there."""
