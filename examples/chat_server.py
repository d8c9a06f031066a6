"""A chat with a server that runs (`pagewire serve`): `python examples/chat_server.py [URL]`. Needs openai's package."""

import sys

from openai import OpenAI


def main() -> None:
    url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"
    client = OpenAI(base_url=f"{url}/v1", api_key="none")  # the key of --api-key, if the server has one
    model = client.models.list().data[0].id
    messages = [
        {"role": "system", "content": "You answer in one short sentence."},
        {"role": "user", "content": "What is the capital of France?"},
    ]
    answer = client.chat.completions.create(model=model, messages=messages, temperature=0, max_tokens=24)
    print(answer.choices[0].message.content)
    usage = answer.usage
    print(f"{usage.prompt_tokens} prompt tokens, {usage.completion_tokens} output tokens")


if __name__ == "__main__":
    main()
