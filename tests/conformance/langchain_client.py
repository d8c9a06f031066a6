"""`langchain-openai`: chats, streams, tools and structured output as its users write them."""

from __future__ import annotations

import pydantic
from checks import KEY, MODEL, URL, WEATHER, run
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings

options = {"base_url": f"{URL}/v1", "api_key": KEY, "model": MODEL, "max_retries": 0, "timeout": 300}
chat = ChatOpenAI(**options, temperature=0, max_tokens=200)


class City(pydantic.BaseModel):
    """A city and its country."""

    city: str
    country: str


def check_invoke() -> None:
    answer = chat.invoke("What is the capital of France? Answer briefly.")
    assert "Paris" in answer.content
    assert answer.usage_metadata["total_tokens"] > 0


def check_stream() -> None:
    question = "What is the capital of France? Answer briefly."
    assert "".join(part.content for part in chat.stream(question)) == chat.invoke(question).content


def check_batch() -> None:
    assert len(chat.batch(["Say a.", "Say b.", "Say c."])) == 3


def check_bound_tools() -> None:
    answer = chat.bind_tools([WEATHER], tool_choice="get_weather").invoke("What is the weather in Paris?")
    (call,) = answer.tool_calls
    assert call["name"] == "get_weather"
    assert set(call["args"]) == {"city", "unit"}


def check_structured_output() -> None:
    for method in ("json_schema", "function_calling"):
        assert isinstance(chat.with_structured_output(City, method=method).invoke("The capital of France."), City)


def check_completion() -> None:
    assert OpenAI(**options, max_tokens=5).invoke("Once upon a time")


def check_embeddings() -> None:
    embeddings = OpenAIEmbeddings(
        base_url=f"{URL}/v1", api_key=KEY, model=MODEL, check_embedding_ctx_length=False, max_retries=0
    )
    vectors = embeddings.embed_documents(["a cat", "a dog"])
    assert len(vectors) == 2
    assert len(vectors[0]) > 100


if __name__ == "__main__":
    run(globals())
