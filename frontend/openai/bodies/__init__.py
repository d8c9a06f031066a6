"""The JSON of requests and answers: read, bounded, typed and described."""
