"""Fields that both generating endpoints take, besides those that say how to draw."""

from __future__ import annotations

import pytest

from pagewire.ipc.requests import AddRequest
from pagewire.ipc.server_config import ServerConfig
from tests.support.http_server import ids_of, joined_text, message, running_server


async def test_prompts_are_cut_to_their_last_tokens():
    async with running_server("x") as server:
        await server.complete(prompt="abcdef", truncate_prompt_tokens=3)
        assert (await server.core.next(AddRequest)).inputs.prompt_token_ids == ids_of("def")
        await server.complete(prompt=ids_of("abcdef"), truncate_prompt_tokens=2, truncation_side="right")
        assert (await server.core.next(AddRequest, count=2)).inputs.prompt_token_ids == ids_of("ab")


async def test_a_prompt_that_does_not_fit_is_cut_to_what_leaves_room_for_the_answer():
    async with running_server("x", info={"max_model_len": 32}) as server:
        await server.complete(prompt="a" * 100, truncate_prompt_tokens=-1, max_tokens=8)
        assert len((await server.core.next(AddRequest)).inputs.prompt_token_ids) == 24
        body = await server.chat(messages=[message("a" * 100)], truncate_prompt_tokens=-1, max_tokens=8)
        assert body["usage"]["prompt_tokens"] == 24


async def test_the_echo_of_a_cut_prompt_is_what_is_left_of_it():
    async with running_server("x") as server:
        body = await server.complete(prompt="abcdef", truncate_prompt_tokens=3, echo=True)
        assert body["choices"][0]["text"] == "defx"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": 1000}, "truncate_prompt_tokens"),
        ({"truncation_side": "left"}, "truncation_side"),
        ({"stream_interval": 0}, "stream_interval"),
        ({"kv_transfer_params": {}}, "kv_transfer_params"),
        ({"vllm_xargs": {}}, "vllm_xargs"),
        ({"logprob_token_ids": [1]}, "logprob_token_ids"),
        ({"thinking_token_budget": 5}, "thinking_token_budget"),
        ({"repetition_detection": {}}, "repetition_detection"),
        ({"store": True}, "store"),
        ({"stream": True, "prompt_logprobs": 1}, "prompt_logprobs"),
        ({"stop": ["x"] * 17}, "stop"),
    ],
)
async def test_values_that_are_not_served_are_refused_by_name(fields, param):
    async with running_server("x") as server:
        for path, body in (
            ("/v1/completions", {"prompt": "p"}),
            ("/v1/chat/completions", {"messages": [message("x")]}),
        ):
            status, answer = await server.post(path, **body, **fields)
            assert (status, answer["error"]["param"]) == (400, param)


@pytest.mark.parametrize("field", ["modalities", "audio", "prediction", "web_search_options", "verbosity"])
async def test_what_chats_can_not_have_is_refused_by_name(field):
    async with running_server("x") as server:
        status, answer = await server.post("/v1/chat/completions", messages=[message("x")], **{field: ["audio"]})
        assert (status, answer["error"]["param"]) == (400, field)


@pytest.mark.parametrize(
    ("field", "value", "instead"),
    [("suffix", "s", "fim_prefix"), ("repetition_detection", {"max_pattern_size": 8}, "repetition_penalty")],
)
async def test_fields_are_refused_with_what_to_do_instead(field, value, instead):
    async with running_server("x") as server:
        status, answer = await server.post("/v1/completions", prompt="p", **{field: value})
        assert (status, answer["error"]["param"]) == (400, field)
        assert instead in answer["error"]["message"]


async def test_tokens_are_named_by_ids_in_logprobs():
    async with running_server("ab") as server:
        body = await server.complete(prompt="p", logprobs=1, echo=True, return_tokens_as_token_ids=True)
        logprobs = body["choices"][0]["logprobs"]
        assert logprobs["tokens"] == ["token_id:112", "token_id:97", "token_id:98", "token_id:257"]
        assert "token_id:97" in logprobs["top_logprobs"][1]
        assert body["choices"][0]["text"] == "pab"
        body = await server.chat(logprobs=True, top_logprobs=1, return_tokens_as_token_ids=True)
        entry = body["choices"][0]["logprobs"]["content"][0]
        assert (entry["token"], entry["bytes"]) == ("token_id:97", [97])
        assert entry["top_logprobs"][0]["token"].startswith("token_id:")
        chunks = await server.stream_completion(logprobs=0, return_tokens_as_token_ids=True)
        tokens = [token for chunk in chunks for token in (chunk["choices"][0]["logprobs"] or {}).get("tokens", [])]
        assert tokens == ["token_id:97", "token_id:98", "token_id:257"]


async def test_the_server_can_name_tokens_by_ids_unless_a_request_says_otherwise():
    async with running_server("ab", config=ServerConfig(return_tokens_as_token_ids=True)) as server:
        assert (await server.complete(logprobs=0))["choices"][0]["logprobs"]["tokens"][0] == "token_id:97"
        body = await server.complete(logprobs=0, return_tokens_as_token_ids=False)
        assert body["choices"][0]["logprobs"]["tokens"][0] == "a"


async def test_the_prompts_text_is_returned():
    async with running_server("x") as server:
        assert (await server.complete(prompt="abc", return_prompt_text=True))["choices"][0]["prompt_text"] == "abc"
        body = await server.complete(prompt=ids_of("abc"), return_prompt_text=True)
        assert body["choices"][0]["prompt_text"] == "abc"
        assert (await server.chat(return_prompt_text=True))["prompt_text"] == "<turn>user: hi\n<turn>assistant: "
        assert (await server.stream_chat(return_prompt_text=True))[0]["prompt_text"].startswith("<turn>user: hi")
        assert (await server.stream_completion(return_prompt_text=True))[0]["choices"][0]["prompt_text"] == "p"
        assert "prompt_text" not in await server.chat()


async def test_a_stream_brings_so_many_tokens_at_once():
    async with running_server("abcdefgh") as server:
        chunks = await server.stream_completion(stream_interval=3)
        texts = [chunk["choices"][0]["text"] for chunk in chunks]
        assert "".join(texts) == "abcdefgh"
        assert all(len(text) >= 3 for text in texts[1:-2]), "the first comes at once, as does the end"
        assert len(texts) <= 5
        chunks = await server.stream_chat(stream_interval=100, n=2, temperature=1)
        assert joined_text(chunks, 0) == joined_text(chunks, 1) == "abcdefgh"


async def test_a_server_can_force_usage_into_every_chunk():
    async with running_server("ab", config=ServerConfig(enable_force_include_usage=True)) as server:
        for chunks in (await server.stream_chat(), await server.stream_completion()):
            assert all(chunk["usage"] for chunk in chunks)
            assert chunks[-1]["choices"] == []
        assert (await server.complete())["usage"]


async def test_a_chat_repeats_the_message_that_it_goes_on_with():
    messages = [message("hi"), message("He", "assistant")]
    async with running_server("llo") as server:
        for content in ("He", [{"type": "text", "text": "He"}]):
            fields = {"messages": [messages[0], message(content, "assistant")], "continue_final_message": True}
            assert (await server.chat(**fields, echo=True))["choices"][0]["message"]["content"] == "Hello"
            assert joined_text(await server.stream_chat(**fields, echo=True)) == "Hello"
            assert (await server.chat(**fields))["choices"][0]["message"]["content"] == "llo"
        body = await server.chat(messages=messages[:1], echo=True)
        assert body["choices"][0]["message"]["content"] == "llo", "the user's own message is not repeated"
