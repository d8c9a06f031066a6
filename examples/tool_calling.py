"""A tool is called, and its result told to the model: `python examples/tool_calling.py [URL]`. It needs openai."""

import json
import sys

from openai import OpenAI

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


def get_weather(city: str) -> str:
    return f"{city}: 21 degrees, sunny"


def main() -> None:
    url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"
    client = OpenAI(base_url=f"{url}/v1", api_key="none")
    model = client.models.list().data[0].id
    messages = [{"role": "user", "content": "What is the weather in Paris?"}]
    # "required" makes any model call; "auto" leaves it to one that was trained to.
    answer = client.chat.completions.create(
        model=model, messages=messages, tools=[WEATHER], tool_choice="required", temperature=0, max_tokens=64
    )
    call = answer.choices[0].message.tool_calls[0]
    arguments = json.loads(call.function.arguments)
    print("call:", call.function.name, arguments)

    messages += [
        {"role": "assistant", "tool_calls": [call.model_dump()]},
        {"role": "tool", "tool_call_id": call.id, "content": get_weather(**arguments)},
    ]
    answer = client.chat.completions.create(model=model, messages=messages, temperature=0, max_tokens=24)
    print("answer:", answer.choices[0].message.content)


if __name__ == "__main__":
    main()
