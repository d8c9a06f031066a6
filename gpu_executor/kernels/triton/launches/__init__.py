"""The launch table, one file for each kind of kernel."""
