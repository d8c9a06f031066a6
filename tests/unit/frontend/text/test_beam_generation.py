"""A beam search over a scripted core: how it ends where its answers are not found."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import pytest

from pagewire.frontend.client.engine_client import AsyncEngineClient
from pagewire.frontend.text.beam_search import BeamSearchParams
from pagewire.frontend.text.generation import Generation, TextGenerator
from pagewire.ipc.errors import InvalidRequest, RequestError
from pagewire.ipc.outputs import RequestEnd, StepOutputs
from pagewire.ipc.requests import AddRequest
from pagewire.ipc.sampling_params import SamplingParams
from tests.support.fake_core import FakeCore, engine_info, until
from tests.support.http_server import VOCAB_SIZE, byte_tokenizer

PROMPT = [1, 2, 3]


@contextlib.asynccontextmanager
async def searching(**options) -> AsyncIterator[tuple[FakeCore, AsyncEngineClient, Generation]]:
    async with (
        FakeCore(info=engine_info(vocab_size=VOCAB_SIZE, eos_token_ids=(0,)), **options) as core,
        await AsyncEngineClient.connect(core.address) as client,
    ):
        generator = TextGenerator(client, byte_tokenizer())
        request = generator.prepare(PROMPT, SamplingParams(n=2, max_tokens=4))
        yield core, client, generator.submit(request, beams=BeamSearchParams(beam_width=2, max_tokens=4))


async def test_search_that_is_aborted_says_so():
    async with searching(answers_itself=False) as (core, client, generation):
        request = await core.next(AddRequest)
        await core.send(StepOutputs(accepted=[request.request_id], ends=[RequestEnd(request_id=request.request_id)]))
        with pytest.raises(RequestError, match="aborted before its beam search"):
            await anext(generation)
        assert client.num_live_requests == 0


async def test_beam_that_fails_ends_the_others():
    def refuse_second_beam(request: AddRequest) -> InvalidRequest | None:
        prompt = request.inputs.prompt_token_ids
        return InvalidRequest("no more") if len(prompt) > len(PROMPT) and prompt[-1] % 2 else None

    async with searching(refuses=refuse_second_beam) as (core, client, generation):
        with pytest.raises(InvalidRequest, match="no more"):
            await anext(generation)
        assert client.num_live_requests == 0
        await until(lambda: not core.running)
