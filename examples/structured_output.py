"""Answers that keep to a schema: `python examples/structured_output.py [URL]`. Needs openai's package."""

import json
import sys

from openai import OpenAI

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "is_capital": {"type": "boolean"},
        "rating": {"type": "integer", "minimum": 1, "maximum": 5},
    },
    "required": ["city", "is_capital", "rating"],
    "additionalProperties": False,
}


def main() -> None:
    url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"
    client = OpenAI(base_url=f"{url}/v1", api_key="none")
    model = client.models.list().data[0].id
    answer = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "Describe Paris as JSON."}],
        temperature=0,
        max_tokens=64,
        response_format={"type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA}},
    )
    print(json.loads(answer.choices[0].message.content))  # whatever the model is: it parses

    # One of a few texts: a field of vLLM's, which the SDK passes on.
    answer = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "Is this review positive? 'I loved it.'"}],
        temperature=0,
        extra_body={"structured_outputs": {"choice": ["positive", "negative"]}},
    )
    print(answer.choices[0].message.content)


if __name__ == "__main__":
    main()
