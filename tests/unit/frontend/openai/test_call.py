"""The generations of one HTTP request: all or none are started, they run side by side, and all are counted."""

from __future__ import annotations

import asyncio
import threading

import pytest

from pagewire.ipc.errors import EngineDead
from pagewire.ipc.requests import AbortRequests, AddRequest
from tests.support.http_server import ids_of, running_server


async def test_stop_string_of_a_later_prompt_ends_it_while_an_earlier_one_runs():
    def answer(request: AddRequest) -> list[list[int]]:
        return [ids_of("x" * 100 if request.inputs.prompt_token_ids == ids_of("long") else "a.b.c.d")]

    async with running_server(answer=answer, num_steps=3) as server:
        body = {"prompt": ["long", "short"], "stop": ["."], "max_tokens": 50}
        posting = asyncio.create_task(server.complete(**body))
        abort = await server.core.next(AbortRequests)
        assert len(abort.children) == 1
        assert len(server.core.running) == 1, "the long one runs on"
        server.core.allow_steps(None)
        choices = (await posting)["choices"]
        assert [choice["text"] for choice in choices] == ["x" * 50, "a"]
        assert [choice["finish_reason"] for choice in choices] == ["length", "stop"]


@pytest.mark.parametrize("wrong", [[10**6], [], [1] * 300])
async def test_nothing_runs_when_a_later_prompt_is_refused(wrong):
    async with running_server("x") as server:
        status, answer = await server.post("/v1/completions", prompt=[[1], [2], wrong])
        assert (status, answer["error"]["type"]) == (400, "invalid_request_error")
        await server.complete()
        assert len([sent for sent in server.core.received if isinstance(sent, AddRequest)]) == 1, "the last one alone"


async def test_what_was_sent_is_aborted_and_counted_if_the_rest_cannot_be(monkeypatch):
    async with running_server("x", num_steps=0) as server:
        submit = server.client.submit

        def submit_two(request):
            if len(sent) == 2:
                raise EngineDead("It is gone.")
            sent.append(request)
            return submit(request)

        sent: list[AddRequest] = []
        monkeypatch.setattr(server.client, "submit", submit_two)
        status, answer = await server.post("/v1/completions", prompt=["a", "b", "c"])
        assert (status, answer["error"]["code"]) == (503, "engine_dead")
        assert await server.metric("vllm:request_success_total", finished_reason="error") == 2
        assert server.client.num_live_requests == 0


async def test_bad_words_are_spelled_once_a_call_and_beside_the_event_loop(monkeypatch):
    async with running_server("x") as server:
        encode, threads = server.serving.tokenizer.encode, []

        def note_thread(text, *, add_special_tokens):
            if text.startswith("\n"):
                threads.append(threading.current_thread())
            return encode(text, add_special_tokens=add_special_tokens)

        monkeypatch.setattr(server.serving.tokenizer, "encode", note_thread)
        await server.complete(prompt=["a"], bad_words=["no", "never"])
        num_once = len(threads)
        await server.complete(prompt=["a"] * 20, bad_words=["no", "never"])
        assert len(threads) == 2 * num_once > 0
        assert threading.main_thread() not in threads


async def test_other_work_has_its_turn_between_many_prompts(monkeypatch):
    async with running_server("x") as server:
        encode_async, turns = server.serving.tokenizer.encode_async, []

        async def note_turn(text, *, add_special_tokens):
            if not text.startswith("p"):
                return await encode_async(text, add_special_tokens=add_special_tokens)
            asyncio.get_running_loop().call_soon(turns.append, text)
            turns.append(None)
            return await encode_async(text, add_special_tokens=add_special_tokens)

        monkeypatch.setattr(server.serving.tokenizer, "encode_async", note_turn)
        await server.complete(prompt=[f"p{number}" for number in range(5)])
        assert turns == [turn for number in range(5) for turn in (None, f"p{number}")]


async def test_usage_says_how_many_guesses_were_right_where_tokens_are_guessed():
    facts = {"num_speculative_tokens": 4}
    async with running_server("abc", info=facts, num_draft_tokens=7, num_accepted_tokens=5) as server:
        details = {"accepted_prediction_tokens": 5, "rejected_prediction_tokens": 2}
        assert (await server.complete())["usage"]["completion_tokens_details"] == details
        both = (await server.complete(prompt=["a", "b"]))["usage"]["completion_tokens_details"]
        assert both == {"accepted_prediction_tokens": 10, "rejected_prediction_tokens": 4}
    async with running_server("abc") as server:
        assert "completion_tokens_details" not in (await server.complete())["usage"]
