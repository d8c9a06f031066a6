"""What a client makes of a request before it is sent: checked values, a concrete seed, end tokens."""

from __future__ import annotations

import pytest

from pagewire.frontend.client.engine_client import AsyncEngineClient
from pagewire.ipc.errors import ContextTooLong, InvalidRequest
from pagewire.ipc.requests import AddRequest, Hello
from pagewire.ipc.sampling_params import SamplingParams
from tests.support.fake_core import FakeCore, engine_info
from tests.support.successive_cores import collect


async def test_text_options_are_refused_by_name():
    async with FakeCore() as core, await AsyncEngineClient.connect(core.address) as client:
        for name, value in {
            "stop": "END",
            "bad_words": ["x"],
            "include_stop_str_in_output": True,
            "skip_special_tokens": False,
            "spaces_between_special_tokens": False,
        }.items():
            with pytest.raises(InvalidRequest, match=name) as caught:
                client.generate([1], SamplingParams(**{name: value}))
            assert caught.value.param == name


@pytest.mark.parametrize(
    ("prompt", "params", "error"),
    [
        ([], {}, "empty"),
        ([512], {}, "go from 0 to 511"),
        ([-1], {}, "go from 0 to 511"),
        (["1"], {}, "list of token ids"),
        ([1], {"logprobs": 21}, "max-logprobs"),
        ([1], {"stop_token_ids": [600]}, "stop_token_ids"),
        ([1], {"n": 17, "temperature": 1.0}, "n must be"),
        ([1], {"top_k": 1.5}, "wrong type"),
    ],
)
async def test_values_are_checked_before_anything_is_sent(prompt, params, error):
    async with FakeCore() as core, await AsyncEngineClient.connect(core.address) as client:
        with pytest.raises(InvalidRequest, match=error):
            client.generate(prompt, SamplingParams(**params))
        assert client.num_live_requests == 0
        assert [type(message) for message in core.received] == [Hello]


async def test_prompt_beyond_the_context_is_refused():
    async with FakeCore() as core, await AsyncEngineClient.connect(core.address) as client:
        with pytest.raises(ContextTooLong, match=r"256 tokens.*256 input tokens"):
            client.generate([5] * 256, SamplingParams())


async def test_request_carries_a_concrete_seed_and_the_end_tokens():
    async with FakeCore() as core, await AsyncEngineClient.connect(core.address) as client:
        own = client.make_request([1], SamplingParams(seed=7)).task
        drawn = {client.make_request([1], SamplingParams(seed=None)).task.sampling.seed for _ in range(8)}
        assert own.sampling.seed == 7
        assert len(drawn) == 8
        assert own.eos_token_ids == [2]
        assert client.make_request([1], SamplingParams(ignore_eos=True)).task.eos_token_ids == []
        assert client.make_request([1], SamplingParams(stop_token_ids=[9, 4, 9])).task.stop_token_ids == [9, 4]


async def test_seeds_follow_from_the_engines_seed():
    async def seeds() -> list[int]:
        async with (
            FakeCore(info=engine_info(seed=3)) as core,
            await AsyncEngineClient.connect(core.address) as client,
        ):
            return [client.make_request([1], SamplingParams()).task.sampling.seed for _ in range(4)]

    assert await seeds() == await seeds()


async def test_a_task_in_the_engines_terms_goes_as_it_is():
    async with FakeCore() as core, await AsyncEngineClient.connect(core.address) as client:
        task = client.resolve(SamplingParams(max_tokens=2), bad_words_token_ids=[[4, 5]])
        assert task.sampling.bad_words_token_ids == [[4, 5]]
        stream = client.generate([1], task, label="mine", cache_salt="s", timeout_s=60.0)
        assert await collect(stream) == {0: [10, 11]}
        sent = await core.next(AddRequest)
        assert (sent.task, sent.label, sent.cache_salt, sent.timeout_s) == (task, "mine", "s", 60.0)


async def test_label_without_utf8_is_refused():
    async with FakeCore() as core, await AsyncEngineClient.connect(core.address) as client:
        with pytest.raises(InvalidRequest, match="surrogates"):
            client.generate([1], SamplingParams(), label="\ud83d")
