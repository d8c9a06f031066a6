"""One model family a file, readable as the paper."""
