"""`use_beam_search` over HTTP: its answers, and what does not go with it."""

from __future__ import annotations

import pytest

from tests.support.http_server import message, running_server

# Behind every beam, the scripted core names "a" the likeliest token, then "b", "c", ...


async def test_completion_returns_the_best_answers_and_counts_them():
    async with running_server("a") as server:
        answer = await server.complete(prompt="pp", use_beam_search=True, n=3, max_tokens=2, temperature=0)
    assert [choice["text"] for choice in answer["choices"]] == ["aa", "ab", "ba"]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert {choice["finish_reason"] for choice in answer["choices"]} == {"length"}
    assert answer["usage"]["prompt_tokens"] == 2
    assert answer["usage"]["completion_tokens"] == 6


async def test_chat_and_batches_are_searched_too():
    async with running_server("a") as server:
        chat = await server.chat(use_beam_search=True, n=2, max_tokens=2)
        batch = await server.complete(prompt=["p", "q"], use_beam_search=True, n=2, max_tokens=1)
    assert [choice["message"]["content"] for choice in chat["choices"]] == ["aa", "ab"]
    assert [choice["text"] for choice in batch["choices"]] == ["a", "b", "a", "b"]


async def test_logprobs_are_those_of_the_path():
    async with running_server("a") as server:
        answer = await server.complete(use_beam_search=True, n=2, max_tokens=2, logprobs=1, echo=True)
    logprobs = answer["choices"][1]["logprobs"]
    assert logprobs["tokens"] == ["p", "a", "b"]
    assert logprobs["token_logprobs"][1:] == pytest.approx([-0.097, -0.597])
    assert logprobs["top_logprobs"][2] == pytest.approx({"a": -0.097, "b": -0.597})


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stream": True}, "stream"),
        ({"top_p": 0.5}, "top_p"),
        ({"stop": "x"}, "stop"),
        ({"presence_penalty": 1}, "presence_penalty"),
        ({"structured_outputs": {"regex": "a"}}, "use_beam_search"),
        ({"n": 11}, "n"),
        ({"best_of": 4}, "best_of"),
        ({"use_beam_search": False, "length_penalty": 2}, "length_penalty"),
        ({"use_beam_search": None, "early_stopping": True}, "early_stopping"),
        ({"use_beam_search": "yes"}, "use_beam_search"),
        ({"length_penalty": 11}, "length_penalty"),
    ],
)
async def test_what_does_not_go_together_is_a_400(fields: dict[str, object], param: str):
    async with running_server("a") as server:
        status, answer = await server.post(
            "/v1/completions", **{"prompt": "p", "use_beam_search": True, "n": 2, "max_tokens": 2, **fields}
        )
        assert status == 400, answer
        assert answer["error"]["param"] == param
        assert (await server.complete(max_tokens=1))["choices"][0]["text"] == "a"


async def test_values_that_ask_for_nothing_go_with_it():
    async with running_server("a") as server:
        answer = await server.chat(
            messages=[message("hi")], use_beam_search=True, n=1, max_tokens=1, top_p=1.0, top_k=-1, min_p=0, stop=[],
            length_penalty=1.0, early_stopping=False,
        )  # fmt: skip
    assert answer["choices"][0]["message"]["content"] == "a"
