"""What tools/fuzz_http.py and tools/fuzz_zmq.py send."""
