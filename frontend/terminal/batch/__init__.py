"""`pagewire run-batch`: a file of requests, answered into another one."""
