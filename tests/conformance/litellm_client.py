"""`litellm` with the server as an OpenAI-compatible and as a vLLM endpoint."""

from __future__ import annotations

import json
import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # or it asks the internet for prices, three times

import litellm
from checks import KEY, MODEL, QUESTION, URL, WEATHER, run

options = {"api_base": f"{URL}/v1", "api_key": KEY, "num_retries": 0, "timeout": 300}


def check_completion() -> None:
    for provider in ("openai", "hosted_vllm"):
        answer = litellm.completion(f"{provider}/{MODEL}", QUESTION, temperature=0, max_tokens=20, **options)
        assert "Paris" in answer.choices[0].message.content
        assert answer.usage.total_tokens > 0


def check_stream() -> None:
    fields = {"temperature": 0, "max_tokens": 20, **options}
    chunks = list(litellm.completion(f"hosted_vllm/{MODEL}", QUESTION, stream=True, **fields))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == litellm.completion(f"hosted_vllm/{MODEL}", QUESTION, **fields).choices[0].message.content


def check_tools() -> None:
    answer = litellm.completion(
        f"hosted_vllm/{MODEL}", QUESTION, tools=[WEATHER], tool_choice="required", max_tokens=200, **options
    )
    (call, *_) = answer.choices[0].message.tool_calls
    assert set(json.loads(call.function.arguments)) == {"city", "unit"}


def check_text_completion() -> None:
    answer = litellm.text_completion(
        prompt="Once upon", model=f"text-completion-openai/{MODEL}", max_tokens=4, **options
    )
    assert answer.choices[0].text


def check_embedding() -> None:
    answer = litellm.embedding(f"openai/{MODEL}", ["a cat", "a dog"], encoding_format="float", **options)
    assert len(answer.data) == 2


def check_errors() -> None:
    try:
        litellm.completion("hosted_vllm/nobody", QUESTION, **options)
    except litellm.NotFoundError:
        return
    raise AssertionError("another model is answered")


if __name__ == "__main__":
    run(globals())
