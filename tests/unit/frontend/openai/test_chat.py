"""POST /v1/chat/completions over a scripted core."""

from __future__ import annotations

import pytest

from pagewire.checkpoint.generation_config import GenerationDefaults
from pagewire.ipc.requests import AddRequest
from tests.support.http_server import EOS, TURN, byte_tokenizer, joined_text, message, running_server


def prompt_of(server) -> str:
    """The prompt that the core got last, as text."""
    request = [m for m in server.core.received if isinstance(m, AddRequest)][-1]
    return byte_tokenizer().decode(request.inputs.prompt_token_ids, skip_special_tokens=False)


async def test_messages_are_rendered_and_answered():
    async with running_server("Paris.") as server:
        answer = await server.chat(messages=[message("be brief", "system"), message("capital?")])
        assert answer["id"].startswith("chatcmpl-")
        assert answer["object"] == "chat.completion"
        assert answer["choices"] == [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Paris.", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
                "stop_reason": None,
            }
        ]
        assert prompt_of(server) == "<turn>system: be brief\n<turn>user: capital?\n<turn>assistant: "
        request = server.core.received[-1]
        assert (
            request.inputs.prompt_token_ids[0] == TURN
        )  # special tokens of the template are tokens, and no BOS is added


async def test_stream_brings_role_then_text_then_finish():
    async with running_server("Grüße 😀") as server:
        chunks = await server.stream_chat()
        assert all(chunk["object"] == "chat.completion.chunk" for chunk in chunks)
        assert len({chunk["id"] for chunk in chunks}) == 1
        choices = [chunk["choices"][0] for chunk in chunks]
        assert choices[0]["delta"] == {"role": "assistant", "content": ""}
        assert joined_text(chunks) == "Grüße 😀"
        assert all("�" not in choice["delta"].get("content", "") for choice in choices)
        assert choices[-1]["delta"] == {}
        assert (choices[-1]["finish_reason"], choices[-1]["stop_reason"]) == ("stop", None)
        assert all(choice["finish_reason"] is None for choice in choices[:-1])
        assert not any("usage" in chunk for chunk in chunks)
        assert not any(chunk["choices"] == [] for chunk in chunks)


async def test_max_tokens_defaults_to_the_rest_of_the_context():
    async with running_server("a" * 300) as server:
        answer = await server.chat()
        assert answer["choices"][0]["finish_reason"] == "length"
        assert answer["usage"]["total_tokens"] == 256


async def test_max_completion_tokens_wins_over_max_tokens_and_the_models_default():
    async with running_server("abcdef", defaults=GenerationDefaults(max_tokens=1)) as server:
        assert (await server.chat())["choices"][0]["message"]["content"] == "a"
        assert (await server.chat(max_tokens=2))["choices"][0]["message"]["content"] == "ab"
        both = await server.chat(max_tokens=2, max_completion_tokens=3)
        assert both["choices"][0]["message"]["content"] == "abc"
        for name in ("max_tokens", "max_completion_tokens"):
            status, answer = await server.post("/v1/chat/completions", messages=[message("x")], **{name: 0})
            assert (status, answer["error"]["param"]) == (400, name)


async def test_every_child_gets_its_role_its_text_and_one_finish():
    async with running_server("one", "a longer answer", "three") as server:
        chunks = await server.stream_chat(n=3, temperature=1, stream_options={"include_usage": True})
        *chunks, last = chunks
        for index, text in enumerate(("one", "a longer answer", "three")):
            mine = [c for chunk in chunks for c in chunk["choices"] if c["index"] == index]
            assert mine[0]["delta"]["role"] == "assistant"
            assert joined_text(chunks, index) == text
            assert [c["finish_reason"] for c in mine if c["finish_reason"]] == ["stop"]
        assert last["choices"] == []
        assert last["usage"]["completion_tokens"] == len("onea longer answerthree") + 3


async def test_usage_chunk_comes_only_when_asked_for_and_then_last():
    async with running_server("abc") as server:
        chunks = await server.stream_chat(stream_options={"include_usage": True})
        assert [chunk["choices"] == [] for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
        assert all(chunk["usage"] is None for chunk in chunks[:-1])
        assert chunks[-1]["usage"]["completion_tokens"] == 4


async def test_continuous_usage_grows_up_to_the_sum_over_children():
    async with running_server("abc", "defghi") as server:
        options = {"include_usage": True, "continuous_usage_stats": True}
        chunks = await server.stream_chat(n=2, temperature=1, stream_options=options)
        counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
        assert counts == sorted(counts)
        assert counts[-1] == 4 + 7
        assert {chunk["usage"]["prompt_tokens"] for chunk in chunks} == {chunks[0]["usage"]["prompt_tokens"]}


@pytest.mark.parametrize(
    "body",
    [
        {"stream_options": {"include_usage": True}},
        {"stream": True, "stream_options": {"continuous_usage_stats": True}},
        {"stream": True, "stream_options": {"include_obfuscation": True}},
        {"stream": True, "stream_options": {"unheard_of": True}},
        {"stream": True, "prompt_logprobs": 1},
    ],
)
async def test_stream_options_that_make_no_sense_are_a_400(body):
    async with running_server("x") as server:
        status, answer = await server.post("/v1/chat/completions", messages=[message("x")], **body)
        assert status == 400
        assert answer["error"]["param"].split(".")[0] in ("stream_options", "prompt_logprobs")


async def test_content_may_be_text_parts():
    async with running_server("x") as server:
        await server.chat(messages=[message([{"type": "text", "text": "part"}])])
        assert "user: part" in prompt_of(server)


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        ({}, "messages"),
        ([{"content": "x"}], "messages[0]"),
        ([{"role": 5, "content": "x"}], "messages[0].role"),
        ([{"role": "alien", "content": "x"}], "messages[0].role"),
        ([{"role": "assistant", "content": "x", "tool_calls": [{"id": "1"}]}], "messages[0].tool_calls[0]"),
        (
            [{"role": "user", "content": "x", "tool_calls": [{"id": "1", "function": {"name": "f"}}]}],
            "messages[0].tool_calls",
        ),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([{"role": "user", "content": "x", "weight": 1}], "messages[0].weight"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}], "messages[0].content[0]"),
        ([{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}], "messages[0].content[0]"),
    ],
)
async def test_messages_that_cannot_be_rendered_are_a_400_that_names_the_place(messages, param):
    async with running_server("x") as server:
        status, answer = await server.post("/v1/chat/completions", messages=messages)
        assert (status, answer["error"]["param"]) == (400, param)


async def test_answer_of_an_sdk_can_be_sent_back():
    async with running_server("x") as server:
        previous = {
            "role": "assistant", "content": "hello", "refusal": None, "annotations": [], "audio": None,
            "function_call": None, "tool_calls": None,
        }  # fmt: skip
        await server.chat(messages=[message("hi"), previous, message("again")])
        assert "assistant: hello" in prompt_of(server)


async def test_final_message_is_continued():
    async with running_server("is blue") as server:
        await server.chat(messages=[message("sky?"), message("The sky", "assistant")], continue_final_message=True)
        assert prompt_of(server).endswith("assistant: The sky")
        status, answer = await server.post(
            "/v1/chat/completions",
            messages=[message("x")],
            continue_final_message=True,
            add_generation_prompt=True,
        )
        assert (status, answer["error"]["param"]) == (400, "continue_final_message")


async def test_generation_prompt_can_be_left_out_and_template_variables_given():
    async with running_server("x") as server:
        await server.chat(add_generation_prompt=False, chat_template_kwargs={"anything": [1]})
        assert prompt_of(server) == "<turn>user: hi\n"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tool_choice", "required"),
        ("logits_processors", ["x"]),
        ("audio", {"voice": "x"}),
        ("modalities", ["text", "audio"]),
        ("prediction", {"type": "content", "content": "x"}),
        ("store", True),
        ("chat_template", "{{ x }}"),
        ("web_search_options", {}),
        ("suffix", "x"),
        ("unheard_of", 1),
    ],
)
async def test_what_is_not_served_is_refused_by_name(field, value):
    async with running_server("x") as server:
        status, answer = await server.post("/v1/chat/completions", messages=[message("x")], **{field: value})
        assert (status, answer["error"]["param"]) == (400, field)
        assert field in answer["error"]["message"]


async def test_fields_that_ask_for_nothing_are_accepted():
    async with running_server("x") as server:
        await server.chat(
            user="u",
            metadata={"a": "b"},
            store=False,
            service_tier="auto",
            prompt_cache_key="k",
            safety_identifier="s",
            tools=[],
            tool_choice="none",
            parallel_tool_calls=True,
            response_format={"type": "text"},
            modalities=["text"],
            guided_json=None,
            stop=None,
            logit_bias=None,
            temperature=None,
        )


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("suffix", "x"),
        ("prompt_embeds", "x"),
        ("store", True),
        ("truncate_prompt_tokens", 0),
    ],
)
async def test_completion_fields_that_are_not_served_are_refused_by_name(field, value):
    async with running_server("x") as server:
        status, answer = await server.post("/v1/completions", prompt="x", **{field: value})
        assert (status, answer["error"]["param"]) == (400, field)
        await server.complete(best_of=1, suffix="")


async def test_unknown_model_is_a_404_and_no_model_is_fine():
    async with running_server("x", info={"served_model_names": ("first", "second")}) as server:
        assert (await server.chat())["model"] == "first"
        assert (await server.chat(model="second"))["model"] == "second"
        status, answer = await server.post("/v1/chat/completions", messages=[message("x")], model="gpt-4")
        assert status == 404
        assert answer["error"] == {
            "message": "The model `gpt-4` does not exist.",
            "type": "invalid_request_error",
            "param": "model",
            "code": "model_not_found",
        }


async def test_token_ids_are_returned_when_asked_for():
    async with running_server("ab") as server:
        answer = await server.chat(return_token_ids=True)
        assert answer["choices"][0]["token_ids"] == [97, 98, EOS]
        assert answer["prompt_token_ids"][0] == TURN
        chunks = await server.stream_chat(return_token_ids=True)
        assert chunks[0]["prompt_token_ids"] == answer["prompt_token_ids"]
        assert [t for chunk in chunks for t in chunk["choices"][0].get("token_ids", [])] == [97, 98, EOS]


async def test_prompt_logprobs_stand_beside_the_choices():
    async with running_server("x") as server:
        answer = await server.chat(prompt_logprobs=0)
        assert answer["prompt_logprobs"][0] is None
        assert len(answer["prompt_logprobs"]) == answer["usage"]["prompt_tokens"]
