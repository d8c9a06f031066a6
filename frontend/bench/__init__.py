"""Benchmarks of any server with OpenAI's API: load with random arrivals, latencies, throughput."""
