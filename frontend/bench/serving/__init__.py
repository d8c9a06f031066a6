"""Load on any server with OpenAI's API: random arrivals, latencies, throughput, several servers side by side."""
