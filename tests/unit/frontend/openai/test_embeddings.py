"""/v1/embeddings, as the openai SDK and vLLM's users ask for it."""

from __future__ import annotations

import base64
import struct

import openai
import pytest

from pagewire.ipc.requests import AddRequest, EmbedTask
from tests.support.http_server import BOS, running_server


async def embed(server, **body):
    status, answer = await server.post("/v1/embeddings", **body)
    assert status == 200, answer
    return answer


async def test_a_text_becomes_one_vector():
    async with running_server(num_cached_tokens=1) as server:
        answer = await embed(server, input="abc", model="fake")
    (data,) = answer["data"]
    assert data == {"index": 0, "object": "embedding", "embedding": [3.0, 97.0, 0.0]}
    assert (answer["object"], answer["model"]) == ("list", "fake")
    assert (answer["usage"]["prompt_tokens"], answer["usage"]["total_tokens"]) == (3, 3)
    assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": 1}


@pytest.mark.parametrize(
    ("given", "lengths"),
    [(["ab", "c"], [2, 1]), ([5, 6, 7], [3]), ([[5, 6], [7]], [2, 1]), ("x", [1])],
)
async def test_every_form_of_input_is_taken(given, lengths):
    async with running_server() as server:
        answer = await embed(server, input=given)
    assert [data["embedding"][0] for data in answer["data"]] == lengths
    assert [data["index"] for data in answer["data"]] == list(range(len(lengths)))


async def test_base64_holds_little_endian_floats():
    async with running_server() as server:
        answer = await embed(server, input="abc", encoding_format="base64")
    assert struct.unpack("<3f", base64.b64decode(answer["data"][0]["embedding"])) == (3.0, 97.0, 0.0)


@pytest.mark.parametrize(
    ("fields", "task"),
    [
        ({}, EmbedTask()),
        ({"pooling": "mean"}, EmbedTask(pooling="mean")),
        ({"normalize": False}, EmbedTask(normalize=False)),
        ({"use_activation": False}, EmbedTask(normalize=False)),
    ],
)
async def test_fields_become_the_task(fields, task):
    async with running_server() as server:
        await embed(server, input="abc", **fields)
        assert (await server.core.next(AddRequest)).task == task


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": []}, "input"),
        ({"input": "abc", "dimensions": 2}, "dimensions"),
        ({"input": "abc", "encoding_format": "int8"}, "encoding_format"),
        ({"input": "abc", "normalize": True, "use_activation": False}, "normalize"),
        ({"input": "abc", "truncate_prompt_tokens": 9999}, "truncate_prompt_tokens"),
        ({"input": "abc", "color": "red"}, "color"),
    ],
)
async def test_what_makes_no_sense_is_refused_by_name(fields, param):
    async with running_server() as server:
        status, answer = await server.post("/v1/embeddings", **fields)
    assert status == 400
    assert answer["error"]["param"] == param


async def test_a_prompt_is_cut_where_it_is_asked_for():
    async with running_server() as server:
        right = await embed(server, input="abcdef", truncate_prompt_tokens=2)
        left = await embed(server, input="abcdef", truncate_prompt_tokens=2, truncation_side="left")
    assert right["data"][0]["embedding"][:2] == [2.0, float(ord("a"))]
    assert left["data"][0]["embedding"][:2] == [2.0, float(ord("e"))]


async def test_a_prompt_may_fill_the_context_and_no_more():
    async with running_server(info={"max_model_len": 8}) as server:
        await embed(server, input="12345678")
        status, answer = await server.post("/v1/embeddings", input=[BOS] * 9)
    assert status == 400
    assert answer["error"]["code"] == "context_length_exceeded"


async def test_the_sdk_reads_it():
    async with running_server() as server:
        client = openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
        async with client:
            answer = await client.embeddings.create(model="fake", input=["ab", "c"])
        assert [data.embedding[0] for data in answer.data] == [2.0, 1.0]
        assert answer.usage.total_tokens == 3


async def test_prompts_are_counted_with_all_others():
    async with running_server() as server:
        await embed(server, input=["ab", "c"])
        assert await server.metric("vllm:request_success_total", finished_reason="stop") == 2
