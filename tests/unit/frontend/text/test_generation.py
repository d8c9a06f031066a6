"""Prompts to requests to text, over a scripted core."""

from __future__ import annotations

import asyncio
import contextlib
import gc

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from pagewire.checkpoint.tokenizer.facts import TokenizerFacts
from pagewire.frontend.client.engine_client import AsyncEngineClient
from pagewire.frontend.text.generation import Generation, TextGenerator
from pagewire.frontend.tokenizer.tokenizer import Tokenizer
from pagewire.ipc.errors import ExecutorDied, InvalidRequest
from pagewire.ipc.outputs import RequestEnd, StepOutputs
from pagewire.ipc.requests import AbortRequests, AddRequest
from pagewire.ipc.sampling_params import SamplingParams
from tests.support.fake_core import FakeCore, engine_info, until
from tests.support.vocabularies import train_byte_level

VOCAB_SIZE = 700


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    backend = train_byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False), vocab_size=VOCAB_SIZE)
    return Tokenizer(backend, TokenizerFacts())


@contextlib.asynccontextmanager
async def generating(tokenizer: Tokenizer, *texts: str, end: int = 0, **options):
    """A generator whose core answers child c with texts[c] and the end token."""

    def answer(request: AddRequest) -> list[list[int]]:
        return [[*tokenizer.encode(text, add_special_tokens=False), end] for text in texts]

    async with (
        FakeCore(answer=answer, info=engine_info(vocab_size=VOCAB_SIZE, eos_token_ids=(0,)), **options) as core,
        await AsyncEngineClient.connect(core.address) as client,
    ):
        yield core, TextGenerator(client, tokenizer)


async def collect(generation: Generation) -> dict[int, tuple[str, str | None, int | str | None, int]]:
    answers: dict[int, tuple[str, str | None, int | str | None, int]] = {}
    async for chunk in generation:
        text = answers[chunk.index][0] if chunk.index in answers else ""
        answers[chunk.index] = (text + chunk.text, chunk.finish_reason, chunk.stop_reason, chunk.num_output_tokens)
    return answers


async def test_text_goes_in_and_text_comes_out(tokenizer):
    async with generating(tokenizer, "Hello world!", num_cached_tokens=2) as (core, generator):
        generation = await generator.generate("The quick", SamplingParams(max_tokens=None), label="mine")
        await generation.accepted()
        num_tokens = len(tokenizer.encode("Hello world!", add_special_tokens=False)) + 1
        assert await collect(generation) == {0: ("Hello world!", "stop", None, num_tokens)}
        assert generation.prompt_token_ids == tokenizer.encode("The quick", add_special_tokens=True)
        assert (await core.next(AddRequest)).label == "mine"
        assert generation.num_cached_tokens == 2
        assert generation.queue_s == 0.001


async def test_token_ids_go_in_as_they_are(tokenizer):
    async with generating(tokenizer, "é") as (core, generator):
        generation = await generator.generate([5, 6, 7], SamplingParams())
        assert (await collect(generation))[0][0] == "é"
        assert (await core.next(AddRequest)).inputs.prompt_token_ids == [5, 6, 7]


async def test_empty_prompt_is_refused(tokenizer):
    async with generating(tokenizer, "x") as (_, generator):
        with pytest.raises(InvalidRequest, match="prompt is empty"):
            await generator.generate("", SamplingParams())


async def test_stop_string_ends_its_child_alone(tokenizer):
    num_tokens = len(tokenizer.encode("one END", add_special_tokens=False))
    texts = "one END two", "three four five six"
    async with generating(tokenizer, *texts, num_steps=num_tokens) as (core, generator):
        generation = await generator.generate("x", SamplingParams(n=2, max_tokens=None, stop=["END"]))
        ended = None
        while ended is None or ended.finish_reason is None:
            chunk = await anext(generation)
            ended = chunk if chunk.index == 0 else ended
        assert (await core.next(AbortRequests)).children == [(1, 0)]
        core.allow_steps(None)
        rest = await collect(generation)
        assert (ended.stop_reason, list(rest)) == ("END", [1])
        assert rest[1][1:3] == ("stop", None)


async def test_answer_is_complete_when_its_last_child_found_a_stop_string(tokenizer):
    num_tokens = len(tokenizer.encode("one END", add_special_tokens=False))
    async with generating(tokenizer, "one END and much more", num_steps=num_tokens) as (core, generator):
        generation = await generator.generate("x", SamplingParams(max_tokens=None, stop=["END"]))
        assert await collect(generation) == {0: ("one ", "stop", "END", num_tokens)}
        assert generator.client.num_live_requests == 0
        await core.next(AbortRequests)
        await until(lambda: not core.running)


@pytest.mark.parametrize("how", ["aclosing", "drop", "cancel"])
async def test_leaving_a_generation_early_aborts_it(tokenizer, how):
    async with generating(tokenizer, "one two three", num_steps=1) as (core, generator):

        async def read() -> None:
            generation = await generator.generate("x", SamplingParams())
            if how == "aclosing":
                async with contextlib.aclosing(generation):
                    await anext(generation)
            elif how == "drop":
                await anext(generation)
            else:
                await collect(generation)

        task = asyncio.create_task(read())
        if how == "cancel":
            await core.next(AddRequest)
            await until(lambda: core.num_steps_left == 0)
            task.cancel()
        await asyncio.wait([task])
        del task
        gc.collect()
        assert (await core.next(AbortRequests)).request_ids == [1]
        assert generator.client.num_live_requests == 0


async def test_failure_in_the_engine_is_raised_after_the_text_that_came(tokenizer):
    async with generating(tokenizer, "one two", num_steps=1) as (core, generator):
        generation = await generator.generate("x", SamplingParams())
        await anext(generation)
        await core.send(StepOutputs(ends=[RequestEnd(request_id=1, error=ExecutorDied("it fell over").to_info())]))
        with pytest.raises(ExecutorDied, match="fell over"):
            await anext(generation)


async def test_bad_words_are_banned_with_and_without_a_space(tokenizer):
    async with generating(tokenizer, "x") as (_, generator):
        spelled = await generator.spell_bad_words(["dog", " lazy"])
    assert [*map(tokenizer.decode, spelled)] == ["dog", " dog", "lazy", " lazy"]
    counts = [*map(len, spelled)]
    assert counts[1] != counts[0] or counts[3] != counts[2]  # whatever their id counts


async def test_bad_word_of_one_token_after_a_space_and_of_several_without_is_banned_in_both_forms():
    merges = [("Ġ", "w"), ("Ġw", "o"), ("Ġwo", "r"), ("Ġwor", "d"), ("o", "r")]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {piece: index for index, piece in enumerate([*alphabet, *(first + last for first, last in merges)])}
    backend = Backend(models.BPE(vocab=vocab, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = Tokenizer(backend, TokenizerFacts())
    async with generating(tokenizer, "x") as (core, generator):
        await generator.generate("x", SamplingParams(bad_words=["word"]))
        task = (await core.next(AddRequest)).task
    assert task.sampling.bad_words_token_ids == [[vocab["w"], vocab["or"], vocab["d"]], [vocab["Ġword"]]]


async def test_logprobs_of_prompt_and_output_are_handed_on(tokenizer):
    async with generating(tokenizer, "one") as (_, generator):
        generation = await generator.generate([5, 6, 7], SamplingParams(logprobs=1, prompt_logprobs=0))
        entries = [entry.token_id async for chunk in generation for entry in chunk.logprobs]
        assert entries == [*tokenizer.encode("one", add_special_tokens=False), 0]
        assert [entry.token_id for entry in generation.prompt_logprobs] == [6, 7]
        plain = await generator.generate([5, 6, 7], SamplingParams())
        await collect(plain)
        assert plain.prompt_logprobs is None


async def test_times_count_from_the_arrival(tokenizer):
    async with generating(tokenizer, "one two three") as (_, generator):
        generation = await generator.generate("x", SamplingParams())
        assert generation.metrics.finished_time is None
        assert generation.metrics.first_token_time is None
        await collect(generation)
        metrics = generation.metrics
        assert metrics.arrival_time == 0.0
        assert metrics.arrival_timestamp > 1e9
        assert 0 < metrics.time_in_queue == metrics.first_scheduled_time <= metrics.first_token_time
        assert metrics.first_token_time <= metrics.last_token_time <= metrics.finished_time < 10
