"""/v1/responses: the OpenAI Responses API over chats, with a store in memory."""
