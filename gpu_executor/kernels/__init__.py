"""The ops and their backends."""
