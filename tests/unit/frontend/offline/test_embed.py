"""`LLM.embed` over a scripted core: order, failures, what becomes of the others."""

from __future__ import annotations

import pytest

from pagewire.frontend.client.engine_client import AsyncEngineClient
from pagewire.frontend.offline.embed import embed_prompts
from pagewire.frontend.offline.lora_request import LoRARequest, read_lora_requests
from pagewire.frontend.offline.progress import Progress
from pagewire.frontend.offline.prompts import read_prompts
from pagewire.ipc.adapters import Adapter
from pagewire.ipc.errors import ContextTooLong, InvalidRequest
from pagewire.ipc.requests import AddRequest, EmbedTask
from tests.support.fake_core import FakeCore, engine_info
from tests.support.http_server import byte_tokenizer


async def embed(client, prompts, task, lora_requests=()):
    read = read_prompts(prompts)
    labels = [f"p{i}" for i in range(len(read))]
    with Progress(len(read), is_shown=False) as progress:
        return await embed_prompts(client, byte_tokenizer(), read, task, labels, progress, lora_requests)


async def test_vectors_come_in_the_order_of_their_prompts():
    async with FakeCore(num_cached_tokens=1) as core, await AsyncEngineClient.connect(core.address) as client:
        outputs = await embed(client, ["abc", {"prompt_token_ids": [7, 8]}], EmbedTask(pooling="mean"))
    assert [output.outputs.embedding for output in outputs] == [[3.0, 97.0, 1.0], [2.0, 7.0, 1.0]]
    assert [output.prompt_token_ids for output in outputs] == [[97, 98, 99], [7, 8]]
    assert [(output.request_id, output.finished, output.num_cached_tokens) for output in outputs] == [
        ("p0", True, 1),
        ("p1", True, 1),
    ]


async def test_a_prompt_that_does_not_fit_is_named_and_ends_the_others():
    async with FakeCore() as core, await AsyncEngineClient.connect(core.address) as client:
        with pytest.raises(ContextTooLong, match="Prompt 1: "):
            await embed(client, ["abc", [1] * 300], EmbedTask())
        with pytest.raises(ContextTooLong, match=r"^This model"):
            await embed(client, [1] * 300, EmbedTask())
        assert client.num_live_requests == 0


async def test_each_prompt_has_its_adapter():
    info = engine_info(adapters=(Adapter(name="a", load_id=1, path="/a"),))
    async with FakeCore(info=info) as core, await AsyncEngineClient.connect(core.address) as client:
        await embed(client, ["abc", "de"], EmbedTask(), [LoRARequest("a", 1, "/a"), None])
        requests = [message for message in core.received if isinstance(message, AddRequest)]
    assert {(request.label, request.adapter) for request in requests} == {("p0", "a"), ("p1", "")}


def test_adapters_are_as_many_as_prompts():
    request = LoRARequest("a", 1, "/a")
    assert read_lora_requests(request, 2) == [request, request]
    assert read_lora_requests(None, 1) == [None]
    with pytest.raises(InvalidRequest, match="1 entries for 2 prompts"):
        read_lora_requests([request], 2)
