"""`best_of`: the likeliest of more answers than are given back."""

from __future__ import annotations

import pytest

from pagewire.frontend.openai.best_of import choose_best
from pagewire.frontend.openai.call import Answer
from pagewire.ipc.outputs import TokenLogprobs
from tests.support.http_server import running_server


def answer(*logprobs: float) -> Answer:
    made = Answer()
    made.logprobs = [TokenLogprobs(token_id=1, logprob=each, rank=1) for each in logprobs]
    return made


def test_the_highest_sums_come_first():
    low, high, middle = answer(-3.0, -1.0), answer(-1.0), answer(-1.0, -1.0)
    assert choose_best([low, high, middle], 2) == [high, middle]
    assert choose_best([low, high], 2) == [low, high], "nothing is chosen: they keep their order"


async def test_all_answers_are_drawn_and_counted_and_the_best_given_back():
    async with running_server("one", "two2", "three") as server:
        body = await server.complete(n=2, best_of=3)
        assert len(body["choices"]) == 2
        assert [choice["index"] for choice in body["choices"]] == [0, 1]
        assert body["choices"][0]["logprobs"] is None
        assert body["usage"]["completion_tokens"] == 4 + 5 + 6


async def test_choices_of_several_prompts_keep_their_places():
    async with running_server("one", "two2") as server:
        body = await server.complete(prompt=["a", "b"], best_of=2)
        assert [choice["index"] for choice in body["choices"]] == [0, 1]


@pytest.mark.parametrize(
    "fields",
    [{"n": 3, "best_of": 2}, {"best_of": 500}, {"best_of": 2, "stream": True}, {"best_of": 2, "temperature": 0}],
)
async def test_what_can_not_be_is_refused_by_name(fields):
    async with running_server("one") as server:
        status, body = await server.post("/v1/completions", prompt="p", **fields)
        assert (status, body["error"]["param"]) == (400, "best_of")
