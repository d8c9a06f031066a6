"""Chat templates rendered in a helper process, because they are programs that others wrote."""
