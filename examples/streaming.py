"""An answer as it is written: `python examples/streaming.py [URL]`. Needs openai's package."""

import sys
import time

from openai import OpenAI


def main() -> None:
    url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"
    client = OpenAI(base_url=f"{url}/v1", api_key="none")
    model = client.models.list().data[0].id
    start = time.perf_counter()
    first_token_s = 0.0
    stream = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "Count from one to five."}],
        temperature=0,
        max_tokens=24,
        stream=True,
        stream_options={"include_usage": True},
    )
    for chunk in stream:
        if chunk.choices and chunk.choices[0].delta.content:
            first_token_s = first_token_s or time.perf_counter() - start
            print(chunk.choices[0].delta.content, end="", flush=True)
        if chunk.usage:  # the last one
            elapsed = time.perf_counter() - start
            num_tokens = chunk.usage.completion_tokens
            print(f"\n{num_tokens} tokens in {elapsed:.2f} s, the first after {first_token_s:.2f} s")


if __name__ == "__main__":
    main()
