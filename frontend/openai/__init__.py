"""The OpenAI HTTP protocol: schemas, errors and one handler an endpoint."""
