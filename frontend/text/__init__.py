"""Between chats, prompts, token ids and answers as text."""
