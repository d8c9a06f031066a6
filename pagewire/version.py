"""The version, read by the package metadata, --version and /version alike."""

__version__ = "0.1.0"
