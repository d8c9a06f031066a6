from __future__ import annotations

import asyncio
import struct

import pytest

from pagewire.frontend.client.embedding import read_floats
from pagewire.ipc.errors import InvalidRequest, RequestError
from pagewire.ipc.outputs import RequestEnd, StepOutputs
from pagewire.ipc.requests import AddRequest, EmbedTask
from tests.support.successive_cores import Cores, connect


def test_floats_are_read_as_they_were_written():
    assert read_floats(struct.pack("<3f", 1.5, -2.0, 0.25)) == [1.5, -2.0, 0.25]


async def test_an_embedding_brings_its_figures(cores: Cores):
    await cores.start(num_cached_tokens=2)
    async with await connect(cores) as client:
        embedding = await client.embed([5, 6, 7], cache_salt="s", label="mine")
        assert embedding.floats() == [3.0, 5.0, 0.0]
        assert (embedding.num_prompt_tokens, embedding.num_cached_tokens) == (3, 2)
        assert client.num_live_requests == 0


async def test_one_that_is_aborted_says_so(cores: Cores):
    core = await cores.start(answers_itself=False)
    async with await connect(cores) as client:
        waiting = asyncio.create_task(client.embed([5, 6, 7]))
        await core.next(AddRequest)
        await core.send(StepOutputs(accepted=[1], ends=[RequestEnd(request_id=1)]))
        with pytest.raises(RequestError, match="aborted before its embedding"):
            await waiting


async def test_a_pooling_that_there_is_not_is_refused_here(cores: Cores):
    await cores.start()
    async with await connect(cores) as client:
        with pytest.raises(InvalidRequest, match="wrong type"):
            await client.embed([5], EmbedTask(pooling="max"))  # type: ignore[arg-type]
