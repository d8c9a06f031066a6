"""POST /v1/completions over a scripted core."""

from __future__ import annotations

import pytest

from pagewire.checkpoint.generation_config import GenerationDefaults
from pagewire.ipc.requests import AddRequest
from tests.support.http_server import BOS, EOS, ids_of, joined_text, running_server


async def sent(server, **body) -> AddRequest:
    """Complete, and return what the core was asked."""
    await server.complete(**body)
    return server.core.received[-1] if isinstance(server.core.received[-1], AddRequest) else _last_request(server)


def _last_request(server) -> AddRequest:
    return [message for message in server.core.received if isinstance(message, AddRequest)][-1]


async def test_text_prompt_is_completed():
    async with running_server("Grüße 😀", num_cached_tokens=1) as server:
        answer = await server.complete(model="fake", prompt="say", max_tokens=50)
        assert answer["id"].startswith("cmpl-")
        assert (answer["object"], answer["model"]) == ("text_completion", "fake")
        assert answer["choices"] == [
            {"index": 0, "text": "Grüße 😀", "logprobs": None, "finish_reason": "stop", "stop_reason": None}
        ]
        num_output = len(ids_of("Grüße 😀")) + 1
        assert answer["usage"] == {
            "prompt_tokens": 3,
            "completion_tokens": num_output,
            "total_tokens": 3 + num_output,
            "prompt_tokens_details": {"cached_tokens": 1},
        }
        assert _last_request(server).inputs.prompt_token_ids == ids_of("say")


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("ab", [[97, 98]]),
        (["ab", "c"], [[97, 98], [99]]),
        ([5, 6, 7], [[5, 6, 7]]),
        ([[5, 6], [7]], [[5, 6], [7]]),
    ],
)
async def test_prompt_is_a_text_ids_or_a_list_of_either(prompt, expected):
    async with running_server("x") as server:
        answer = await server.complete(prompt=prompt)
        prompts = [m.inputs.prompt_token_ids for m in server.core.received if isinstance(m, AddRequest)]
        assert prompts == expected
        assert [choice["index"] for choice in answer["choices"]] == list(range(len(expected)))
        assert answer["usage"]["prompt_tokens"] == sum(map(len, expected))


@pytest.mark.parametrize("prompt", ["", [], [[]], [""], None, [1, "a"], ["a", [1]], [True], [1.5], {}, 3, [[1, "a"]]])
async def test_prompt_without_tokens_or_of_mixed_kinds_is_a_400(prompt):
    async with running_server("x") as server:
        status, answer = await server.post("/v1/completions", prompt=prompt)
        assert status == 400
        assert answer["error"]["param"].startswith("prompt")
        assert (await server.complete(max_tokens=1))["choices"][0]["text"] == "x"


@pytest.mark.parametrize("token_id", [-1, 259, 10**18, 10**30])
async def test_prompt_id_outside_the_vocabulary_is_a_400(token_id):
    async with running_server("x") as server:
        status, answer = await server.post("/v1/completions", prompt=[1, token_id])
        assert status == 400
        assert "prompt" in answer["error"]["message"]
        assert (await server.complete(prompt=[258], max_tokens=1))["choices"][0]["text"] == "x"


async def test_too_many_prompts_are_refused_before_any_runs():
    async with running_server("x") as server:
        status, answer = await server.post("/v1/completions", prompt=["a"] * 1025)
        assert (status, answer["error"]["param"]) == (400, "prompt")
        assert not any(isinstance(m, AddRequest) for m in server.core.received)


async def test_choices_of_prompts_and_children_are_numbered_prompt_first():
    async with running_server("one", "two", "three") as server:
        body = {"prompt": ["a", "b"], "n": 3, "temperature": 0.5}
        answer = await server.complete(**body)
        assert [(c["index"], c["text"]) for c in answer["choices"]] == list(enumerate(["one", "two", "three"] * 2))
        assert answer["usage"]["prompt_tokens"] == 2  # once each, whatever n is
        assert answer["usage"]["completion_tokens"] == 2 * sum(len(t) + 1 for t in ("one", "two", "three"))
        chunks = await server.stream_completion(**body)
        assert [joined_text(chunks, index) for index in range(6)] == ["one", "two", "three"] * 2
        reasons = [c["index"] for chunk in chunks for c in chunk["choices"] if c["finish_reason"]]
        assert sorted(reasons) == list(range(6))


async def test_max_tokens_defaults_to_16_and_ends_with_length():
    async with running_server("a" * 40) as server:
        choice = (await server.complete())["choices"][0]
        assert (choice["text"], choice["finish_reason"]) == ("a" * 16, "length")
        assert (await server.complete(max_tokens=None))["choices"][0]["text"] == "a" * 16


@pytest.mark.parametrize("max_tokens", [-1, 0, 1e18, "5", True])
async def test_max_tokens_that_is_no_positive_number_is_a_400(max_tokens):
    async with running_server("x") as server:
        status, answer = await server.post("/v1/completions", prompt="p", max_tokens=max_tokens)
        assert (status, answer["error"]["param"]) == (400, "max_tokens")


async def test_max_tokens_beyond_the_context_is_clamped():
    async with running_server("a" * 40, info={"max_model_len": 16}) as server:
        for max_tokens, expected in ((7, 6), (6, 6), (10**18, 6)):
            choice = (await server.complete(prompt="0123456789", max_tokens=max_tokens))["choices"][0]
            assert (choice["text"], choice["finish_reason"]) == ("a" * expected, "length")


@pytest.mark.parametrize(("length", "status"), [(15, 200), (16, 400), (17, 400)])
async def test_prompt_at_the_border_of_the_context(length, status):
    async with running_server("aaaa", info={"max_model_len": 16}) as server:
        got, answer = await server.post("/v1/completions", prompt="p" * length)
        assert got == status
        if status == 200:
            assert (answer["choices"][0]["text"], answer["choices"][0]["finish_reason"]) == ("a", "length")
        else:
            assert answer["error"]["code"] == "context_length_exceeded"
            assert "16" in answer["error"]["message"]
            assert str(length) in answer["error"]["message"]


async def test_stop_string_ends_the_text_and_is_its_reason():
    async with running_server("one, two END three") as server:
        for stop in (" END", [" END"], ["zzz", " END"]):
            answer = await server.complete(stop=stop, max_tokens=50)
            assert answer["choices"][0]["text"] == "one, two"
            assert (answer["choices"][0]["finish_reason"], answer["choices"][0]["stop_reason"]) == ("stop", " END")
            assert answer["usage"]["completion_tokens"] == len("one, two END")
        kept = await server.complete(stop=" END", max_tokens=50, include_stop_str_in_output=True)
        assert kept["choices"][0]["text"] == "one, two END"


async def test_stop_string_never_leaks_into_the_stream():
    async with running_server("ABCDEFGHIJKL") as server:
        chunks = await server.stream_completion(stop=["DEFGHIJ"], max_tokens=50)
        assert joined_text(chunks) == "ABC"
        assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
        assert chunks[-1]["choices"][0]["stop_reason"] == "DEFGHIJ"


@pytest.mark.parametrize("stop", ["", [""], ["", "END"], ["x"] * 17, [1], 5])
async def test_empty_or_too_many_stop_strings_are_a_400(stop):
    async with running_server("x") as server:
        status, answer = await server.post("/v1/completions", prompt="p", stop=stop)
        assert status == 400
        assert answer["error"]["param"].startswith("stop")


@pytest.mark.parametrize("stop", [None, [], ["a"] * 5])
async def test_no_stop_strings_and_a_few_are_fine(stop):
    async with running_server("xyz") as server:
        assert (await server.complete(stop=stop))["choices"][0]["text"] == "xyz"


async def test_stop_token_is_reported_and_hidden():
    async with running_server("ab.cd") as server:
        answer = await server.complete(stop_token_ids=[ord(".")])
        assert answer["choices"][0]["text"] == "ab"
        assert (answer["choices"][0]["finish_reason"], answer["choices"][0]["stop_reason"]) == ("stop", ord("."))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("stop_token_ids", [259]),
        ("stop_token_ids", [-1]),
        ("allowed_token_ids", [259]),
        ("allowed_token_ids", []),
        ("logit_bias", {"259": 1}),
        ("logit_bias", {"x": 1}),
        ("temperature", -0.1),
        ("temperature", 2.1),
        ("temperature", "1"),
        ("top_p", 0),
        ("top_p", 1.1),
        ("top_k", -2),
        ("top_k", 1.5),
        ("min_p", 1.1),
        ("presence_penalty", 2.5),
        ("frequency_penalty", -2.5),
        ("repetition_penalty", 0),
        ("min_tokens", 17),
        ("seed", 2**63),
        ("seed", -(2**63) - 1),
        ("seed", 2**64),
        ("seed", 1e30),
        ("seed", 3.5),
        ("seed", "7"),
        ("n", 0),
        ("n", 1_000_000),
        ("n", 17),
        ("logprobs", 21),
        ("logprobs", -2),
        ("prompt_logprobs", 21),
        ("bad_words", [""]),
        ("bad_words", ["x" * 257]),
        ("bad_words", ["x"] * 129),
        ("priority", 1),
        ("cache_salt", "s" * 129),
        ("request_id", "a b"),
    ],
)
async def test_value_out_of_range_is_a_400_that_names_its_field(field, value):
    async with running_server("x") as server:
        status, answer = await server.post("/v1/completions", prompt="p", **{field: value})
        assert status == 400
        assert answer["error"]["type"] == "invalid_request_error"
        assert answer["error"]["param"].split("[")[0] == field


async def test_every_sampling_field_reaches_the_engine():
    async with running_server("x", info={"scheduling_policy": "priority"}) as server:
        request = await sent(
            server,
            n=2,
            temperature=0.7,
            top_p=0.9,
            top_k=40,
            min_p=0.05,
            seed=-7,
            presence_penalty=0.5,
            frequency_penalty=-0.5,
            repetition_penalty=1.1,
            logit_bias={"65": 2.5, "66": -101},
            allowed_token_ids=[65, 66, 67],
            bad_words=["no"],
            min_tokens=3,
            max_tokens=9,
            stop_token_ids=[66],
            logprobs=2,
            prompt_logprobs=1,
            priority=-4,
            cache_salt="tenant",
            request_id="mine",
        )
        sampling, task = request.task.sampling, request.task
        assert (task.n, task.max_tokens, task.eos_token_ids, task.stop_token_ids) == (2, 9, [EOS], [66])
        assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.7, 0.9, 40, 0.05)
        assert (sampling.seed, sampling.min_tokens, sampling.end_token_ids) == (-7, 3, [66, EOS])
        assert (sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty) == (0.5, -0.5, 1.1)
        assert sampling.logit_bias == {65: 2.5, 66: -100.0}
        assert sampling.allowed_token_ids == [65, 66, 67]
        assert [*map(bytes, sampling.bad_words_token_ids)] == [b"no", b" no"]
        assert (sampling.num_logprobs, sampling.num_prompt_logprobs) == (2, 1)
        assert (request.priority, request.cache_salt, request.label) == (-4, "tenant", "cmpl-mine")


async def test_ignore_eos_goes_on_after_the_end_token():
    async with running_server([97, EOS, 98]) as server:
        assert (await server.complete())["choices"][0]["text"] == "a"
        assert (await server.complete(ignore_eos=True, max_tokens=3))["choices"][0]["text"] == "ab"
        shown = await server.complete(ignore_eos=True, max_tokens=3, skip_special_tokens=False)
        assert shown["choices"][0]["text"] == "a<eos>b"


async def test_defaults_of_the_model_stand_between_the_request_and_openai():
    async with running_server("x", defaults=GenerationDefaults(temperature=0.3, top_k=7, max_tokens=5)) as server:
        request = await sent(server, top_k=9)
        assert (request.task.sampling.temperature, request.task.sampling.top_k) == (0.3, 9)
        assert request.task.sampling.top_p == 1.0
        assert request.task.max_tokens == 16  # a completion's own default


async def test_seedless_requests_draw_different_seeds():
    async with running_server("x") as server:
        seeds = {(await sent(server, seed=seed)).task.sampling.seed for seed in (None, None, -1, -1)}
        assert len(seeds) == 4


async def test_add_special_tokens_is_on_for_texts():
    async with running_server("x") as server:
        status, _ = await server.post("/v1/completions", prompt="p", add_special_tokens=False)
        assert status == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_echo_repeats_the_prompt(stream):
    async with running_server("def") as server:
        if stream:
            assert joined_text(await server.stream_completion(prompt="abc", echo=True)) == "abcdef"
        else:
            assert (await server.complete(prompt="abc", echo=True))["choices"][0]["text"] == "abcdef"
            assert (await server.complete(prompt=ids_of("abc"), echo=True))["choices"][0]["text"] == "abcdef"


@pytest.mark.parametrize("stream", [False, True])
async def test_scoring_a_prompt_draws_nothing_that_is_shown_or_counted(stream):
    body = {"prompt": "four", "echo": True, "logprobs": 1, "max_tokens": 0}
    async with running_server("x") as server:
        if stream:
            chunks = await server.stream_completion(**body, stream_options={"include_usage": True})
            assert joined_text(chunks) == "four"
            usage, logprobs = chunks[-1]["usage"], chunks[0]["choices"][0]["logprobs"]
        else:
            answer = await server.complete(**body)
            assert answer["choices"][0]["text"] == "four"
            usage, logprobs = answer["usage"], answer["choices"][0]["logprobs"]
        assert logprobs["tokens"] == list("four")
        assert logprobs["token_logprobs"][0] is None
        assert logprobs["token_logprobs"][1:] == [-byte / 1000 for byte in b"our"]
        assert (usage["prompt_tokens"], usage["completion_tokens"]) == (4, 0)


async def test_token_ids_are_returned_when_asked_for():
    async with running_server("ab") as server:
        choice = (await server.complete(prompt=[BOS, 65], return_token_ids=True))["choices"][0]
        assert (choice["prompt_token_ids"], choice["token_ids"]) == ([BOS, 65], [97, 98, EOS])
        chunks = await server.stream_completion(return_token_ids=True)
        assert [token for chunk in chunks for token in chunk["choices"][0].get("token_ids", [])] == [97, 98, EOS]


async def test_prompt_logprobs_are_keyed_by_token_id():
    async with running_server("x") as server:
        choice = (await server.complete(prompt="ab", prompt_logprobs=1))["choices"][0]
        assert choice["prompt_logprobs"] == [None, {"98": {"logprob": -0.098, "rank": 1, "decoded_token": "b"}}]
        status, answer = await server.post("/v1/completions", prompt="ab", prompt_logprobs=1, stream=True)
        assert (status, answer["error"]["param"]) == (400, "prompt_logprobs")


async def test_bad_words_that_ban_every_allowed_token_are_a_400():
    async with running_server("x") as server:
        body = {"prompt": "p", "allowed_token_ids": ids_of("a")}
        for bad_words in (["a"], [" a"], ["b", "a"]):
            status, answer = await server.post("/v1/completions", **body, bad_words=bad_words)
            assert (status, answer["error"]["param"]) == (400, "allowed_token_ids")
        assert (await server.post("/v1/completions", **body, bad_words=["ab"]))[0] == 200  # a sequence bans no token
