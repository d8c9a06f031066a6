"""HTTP, the OpenAI protocol, tokenizer, detokenizer, clients and the command line."""
