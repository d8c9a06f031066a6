"""KV blocks: ref counts, hashes, the prefix cache and the one door to them."""
