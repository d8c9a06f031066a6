"""Logprobs of both endpoints: bytes exact, tokens that join to the text, nothing lost where texts coincide."""

from __future__ import annotations

import pytest

from pagewire.frontend.openai.logprobs import (
    ChatLogprobsWriter,
    CompletionLogprobsWriter,
    prompt_token_texts,
    top_logprobs,
    write_prompt_logprobs,
)
from pagewire.ipc.outputs import TokenLogprobs
from tests.support.http_server import BOS, EOS, byte_tokenizer, ids_of, message, parse_events, running_server


def merged(chunks, index=0):
    """The completion logprobs of a streamed choice, joined."""
    parts = [
        choice["logprobs"]
        for chunk in chunks
        for choice in chunk["choices"]
        if choice["index"] == index and choice["logprobs"] is not None
    ]
    return {key: [value for part in parts for value in part[key]] for key in parts[0]}


@pytest.mark.parametrize("stream", [False, True])
async def test_chat_bytes_join_to_the_content(stream):
    text = "a 😀 é"
    async with running_server(text) as server:
        if stream:
            chunks = await server.stream_chat(logprobs=True, top_logprobs=3)
            entries = [e for c in chunks if (part := c["choices"][0]["logprobs"]) for e in part["content"]]
        else:
            entries = (await server.chat(logprobs=True, top_logprobs=3))["choices"][0]["logprobs"]["content"]
        *drawn, end = entries
        assert bytes(byte for entry in drawn for byte in entry["bytes"]) == text.encode()
        assert (end["token"], end["bytes"]) == ("<eos>", None)
        assert all(len(entry["top_logprobs"]) == 3 for entry in drawn)
        for entry in drawn:
            values = [top["logprob"] for top in entry["top_logprobs"]]
            assert values == sorted(values, reverse=True)
            assert entry["top_logprobs"][0]["bytes"] == entry["bytes"]


async def test_chat_without_alternatives_lists_none():
    async with running_server("ab") as server:
        entries = (await server.chat(logprobs=True))["choices"][0]["logprobs"]["content"]
        assert [(e["token"], e["logprob"], e["top_logprobs"]) for e in entries[:2]] == [
            ("a", -0.097, []),
            ("b", -0.098, []),
        ]
        assert (await server.chat())["choices"][0]["logprobs"] is None


@pytest.mark.parametrize("body", [{"top_logprobs": 2}, {"logprobs": True, "top_logprobs": 21}, {"logprobs": 3}])
async def test_top_logprobs_need_logprobs_and_have_a_limit(body):
    async with running_server("x") as server:
        status, answer = await server.post("/v1/chat/completions", messages=[message("x")], **body)
        assert status == 400
        assert answer["error"]["param"] in ("top_logprobs", "logprobs")


@pytest.mark.parametrize("stream", [False, True])
async def test_completion_tokens_join_to_the_text(stream):
    text = "\né 😀!"
    async with running_server(text) as server:
        if stream:
            logprobs = merged(await server.stream_completion(logprobs=2))
        else:
            logprobs = (await server.complete(logprobs=2))["choices"][0]["logprobs"]
        assert "".join(logprobs["tokens"]) == text
        joined = ""
        for token, offset in zip(logprobs["tokens"], logprobs["text_offset"], strict=True):
            assert offset == len(joined)
            joined += token
        assert len(logprobs["tokens"]) == len(ids_of(text)) + 1
        assert len({len(values) for values in logprobs.values()}) == 1
        assert all(len(top) == 2 for top in logprobs["top_logprobs"][:-1])


@pytest.mark.parametrize("stream", [False, True])
async def test_echoed_prompt_has_logprobs_but_for_its_first_token(stream):
    async with running_server("xyz") as server:
        body = {"prompt": "\nab", "echo": True, "logprobs": 1, "max_tokens": 2}
        if stream:
            chunks = await server.stream_completion(**body)
            logprobs, text = merged(chunks), "".join(c["choices"][0]["text"] for c in chunks)
        else:
            choice = (await server.complete(**body))["choices"][0]
            logprobs, text = choice["logprobs"], choice["text"]
            assert "prompt_logprobs" not in choice  # a field of its own, not asked for
        assert text == "\nabxy"
        assert "".join(logprobs["tokens"]) == text
        assert logprobs["text_offset"] == [0, 1, 2, 3, 4]
        assert logprobs["token_logprobs"] == [None, -0.097, -0.098, -0.12, -0.121]
        assert logprobs["top_logprobs"][0] is None


@pytest.mark.parametrize("stream", [False, True])
async def test_tokens_are_cut_where_a_stop_string_cut_the_text(stream):
    async with running_server("one END") as server:
        if stream:
            logprobs = merged(await server.stream_completion(logprobs=0, stop=" END"))
        else:
            logprobs = (await server.complete(logprobs=0, stop=" END"))["choices"][0]["logprobs"]
            assert "".join(logprobs["tokens"]) == "one"
        assert len(logprobs["tokens"]) == len("one END")  # those that were drawn and counted
        assert max(logprobs["text_offset"]) <= len("one END")


def test_parts_of_characters_are_keyed_by_their_bytes():
    entry = TokenLogprobs(0xC3, -0.1, 1, [0xC3, 0xC4, 97], [-0.1, -0.2, -0.3])
    assert top_logprobs(byte_tokenizer(), entry, 3) == {"bytes:\\xc3": -0.1, "bytes:\\xc4": -0.2, "a": -0.3}


def test_drawn_token_is_listed_beside_the_alternatives():
    entry = TokenLogprobs(98, -5.0, 9, [97], [-0.1])
    assert top_logprobs(byte_tokenizer(), entry, 1) == {"a": -0.1, "b": -5.0}


def test_impossible_tokens_have_a_finite_logprob():
    entry = TokenLogprobs(98, float("-inf"), 9, [97, 99], [-0.1, float("-inf")])
    assert top_logprobs(byte_tokenizer(), entry, 2) == {"a": -0.1, "c": -9999.0, "b": -9999.0}
    writer = CompletionLogprobsWriter(byte_tokenizer(), (), num_top=0, skip_special_tokens=True)
    assert writer.write([entry], is_last=True).token_logprobs == [-9999.0]


def test_unfinished_character_goes_to_the_last_token():
    writer = CompletionLogprobsWriter(byte_tokenizer(), (), num_top=0, skip_special_tokens=True)
    entries = [TokenLogprobs(token, -1.0, 1) for token in (97, 0xF0, 0x9F)]
    assert writer.write(entries, is_last=True).tokens == ["a", "", "�"]


def test_prompt_texts_leave_the_begin_token_out():
    assert prompt_token_texts(byte_tokenizer(), [BOS, 97, EOS]) == ["", "a", "<eos>"]
    assert prompt_token_texts(byte_tokenizer(), []) == []


def test_prompt_logprobs_list_the_token_and_its_alternatives():
    entry = TokenLogprobs(98, -5.0, 9, [97], [-0.1])
    first, second = write_prompt_logprobs(byte_tokenizer(), [97, 98], [entry])
    assert first is None
    assert {key: (value.rank, value.decoded_token) for key, value in second.items()} == {"98": (9, "b"), "97": (1, "a")}
    assert write_prompt_logprobs(byte_tokenizer(), [], []) == []


async def test_logprobs_of_an_echoed_prompt_are_waited_for():
    async with running_server("xyz", num_steps=0) as server:
        body = {"prompt": "ab", "echo": True, "logprobs": 0, "max_tokens": 1, "stream": True}
        async with server.http.post("/v1/completions", json=body) as response:
            assert response.status == 200  # accepted; the prompt is still to be computed
            server.core.allow_steps(None)
            *chunks, _ = parse_events(await response.text())
        assert merged(chunks)["token_logprobs"] == [None, -0.098, -0.12]


def test_chat_lists_as_many_alternatives_as_were_asked_for_though_their_texts_are_alike():
    fragments = [0xC3, 0xC4, 0xF0, 0x9F, 0x98]
    entry = TokenLogprobs(0xC3, -0.1, 1, fragments, [-0.1, -0.2, -0.3, -0.4, -0.5])
    writer = ChatLogprobsWriter(byte_tokenizer(), num_top=5, shows_special=False)
    (written,) = writer.write([entry]).content
    assert [top.bytes for top in written.top_logprobs] == [[fragment] for fragment in fragments]
    assert {top.token for top in written.top_logprobs} == {"\ufffd"}
    assert [top.logprob for top in written.top_logprobs] == [-0.1, -0.2, -0.3, -0.4, -0.5]
