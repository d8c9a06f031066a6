"""`pagewire models`: which models this machine has, fetching and removing them."""
