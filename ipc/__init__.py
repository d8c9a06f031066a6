"""What two processes must agree on: messages, config, errors, validation, sockets, process start and stop."""
