"""The official `anthropic` SDK against /v1/messages."""

from __future__ import annotations

import anthropic
from checks import KEY, MODEL, QUESTION, URL, WEATHER, run

client = anthropic.Anthropic(base_url=URL, auth_token=KEY, api_key=None, max_retries=0, timeout=300)
GREEDY = {"temperature": 0}  # newer versions of the SDK have no argument for it
TOOL = {
    "name": "get_weather",
    "description": "The weather of a city.",
    "input_schema": WEATHER["function"]["parameters"],
}


def check_message() -> None:
    answer = client.messages.create(model=MODEL, max_tokens=20, messages=QUESTION, extra_body=GREEDY)
    assert "Paris" in answer.content[0].text
    assert answer.stop_reason in ("end_turn", "max_tokens")
    assert answer.usage.output_tokens > 0


def check_stream() -> None:
    fields = {"model": MODEL, "max_tokens": 20, "messages": QUESTION, "extra_body": GREEDY}
    with client.messages.stream(**fields) as stream:
        text = "".join(stream.text_stream)
        assert stream.get_final_message().usage.output_tokens > 0
    assert text == client.messages.create(**fields).content[0].text


def check_tools() -> None:
    answer = client.messages.create(
        model=MODEL,
        max_tokens=200,
        messages=[{"role": "user", "content": "What is the weather in Paris?"}],
        tools=[TOOL],
        tool_choice={"type": "tool", "name": "get_weather"},
    )
    (call,) = [block for block in answer.content if block.type == "tool_use"]
    assert set(call.input) == {"city", "unit"}


def check_count_tokens() -> None:
    assert client.messages.count_tokens(model=MODEL, messages=QUESTION).input_tokens > 5


def check_errors() -> None:
    try:
        client.messages.create(model="nobody", max_tokens=1, messages=QUESTION)
    except anthropic.NotFoundError:
        return
    raise AssertionError("another model is answered")


if __name__ == "__main__":
    run(globals())
