"""What people run in a terminal: chats, completions, the models of this machine, a view of a server, batches."""
