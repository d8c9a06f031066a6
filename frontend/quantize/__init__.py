"""`pagewire quantize`: a smaller copy of a checkpoint."""
