"""What an answer is made of: text, reasoning and tool calls, read from the model's text as it comes."""
