"""Whatever a client sends as a body, the answer is a 4xx in OpenAI's shape, and the next request works."""

from __future__ import annotations

import gzip
import io
import json
import zlib

import pytest

from tests.support.http_server import running_server

_URL = "/v1/completions"


async def post_raw(server, data: bytes | io.BytesIO, content_type: str | None = "application/json"):
    headers = {} if content_type is None else {"Content-Type": content_type}
    skip = ("Content-Type",) if content_type is None else ()
    async with server.http.post(_URL, data=data, headers=headers, skip_auto_headers=skip) as response:
        return response.status, json.loads(await response.read())


@pytest.mark.parametrize(
    "body",
    [
        b"", b"[]", b"null", b"1", b'"x"', b"true", b"{", b"{}", b'{"prompt": }', b"\xff\xfe", b'{"prompt": "a"} x',
        b'{"messages": {}}', b'{"temperature": NaN, "prompt": "a"}', b'{"temperature": Infinity, "prompt": "a"}',
        b'{"temperature": 1e999, "prompt": "a"}', b"[" * 100_000, b'{"prompt": ' + b"[" * 100_000,
        b'{"metadata": ' + b'{"a":' * 100_000,
        b'{"prompt": "\xff"}', b'{"prompt": "\\ud83d"}', b'{"prompt": "\\ude00x"}',
        b'{"model": "\\ud83d", "prompt": "a"}', b'{"prompt": "a", "stop": "\\ud83d"}',
        b'{"prompt": "a", "\\ud83d": 1}', b'{"prompt": "a", "n": ' + b"9" * 5000 + b"}",
        b'{"prompt": "a", "seed": 9223372036854775808}', b'{"prompt": "a", "stream": "yes"}',
        b'{"prompt": "a", "logit_bias": [1]}', b'{"prompt": "a", "stream": 1}',
    ],
)  # fmt: skip
async def test_malformed_body_is_a_400(body):
    async with running_server("x") as server:
        status, answer = await post_raw(server, body)
        assert status == 400
        error = answer["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["type"] == "invalid_request_error"
        assert error["message"]
        assert (await server.complete())["choices"][0]["text"] == "x"


@pytest.mark.parametrize(
    ("value", "status"),
    [
        (b"[" * 62 + b"]" * 62, 200),
        (b"[" * 63 + b"]" * 63, 400),
        (b'{"a":' * 500 + b"1" + b"}" * 500, 400),
        (b'"' + b"[" * 5000 + b'"', 200),
        (b"[" + b"[],{}," * 10_000 + b"1]", 200),
    ],
)
async def test_body_nests_so_many_objects_and_lists_and_no_more(value, status):
    async with running_server("x") as server:
        answered, answer = await post_raw(server, b'{"prompt": "a", "metadata": {"a": ' + value + b"}}")
        assert answered == status
        assert status == 200 or "more than 64 objects and lists" in answer["error"]["message"]


async def test_body_that_can_not_be_decompressed_is_a_400():
    async with running_server("x") as server:
        async with server.http.post(
            _URL, data=b"no gzip", headers={"Content-Type": "application/json", "Content-Encoding": "gzip"}
        ) as response:
            assert response.status == 400
            assert "Content-Encoding" in json.loads(await response.read())["error"]["message"]
        assert (await server.complete())["choices"][0]["text"] == "x"


async def post_encoded(server, data: bytes, encoding: str) -> tuple[int, dict]:
    headers = {"Content-Type": "application/json", "Content-Encoding": encoding}
    async with server.http.post(_URL, data=data, headers=headers) as response:
        return response.status, await response.json()


PLAIN = b'{"prompt": "a"}'


@pytest.mark.parametrize(
    ("encoding", "data"),
    [
        ("gzip", gzip.compress(PLAIN)),
        ("GZIP", gzip.compress(PLAIN)),
        ("deflate", zlib.compress(PLAIN)),
        ("identity", PLAIN),
    ],
)
async def test_compressed_body_is_taken(encoding, data):
    async with running_server("x") as server:
        status, answer = await post_encoded(server, data, encoding)
        assert (status, answer["choices"][0]["text"]) == (200, "x")


@pytest.mark.parametrize(
    ("encoding", "data", "status"),
    [
        ("deflate", b'{"n":1}', 400),
        ("deflate", b"{}", 400),
        ("deflate", zlib.compress(PLAIN)[:-3], 400),
        ("gzip", gzip.compress(PLAIN)[:15], 400),
        ("gzip", b"", 400),
        ("gzip", gzip.compress(PLAIN) + b"more", 400),
        ("gzip", gzip.compress(b'{"prompt": "' + b"a" * 10**8 + b'"}', compresslevel=1), 413),
        ("br", PLAIN, 415),
        ("gzip, gzip", PLAIN, 415),
    ],
)
async def test_what_is_not_compressed_as_its_header_says_is_refused_and_the_connection_goes_on(encoding, data, status):
    async with running_server("x") as server:
        assert (await post_encoded(server, data, encoding))[0] == status
        assert (await server.complete())["choices"][0]["text"] == "x"


async def test_nul_character_is_text():
    async with running_server("x") as server:
        status, _ = await post_raw(server, b'{"prompt": "a\\u0000b"}')
        assert status == 200


@pytest.mark.parametrize("content_type", [None, "text/plain", "application/x-www-form-urlencoded", "application/jsonx"])
async def test_body_that_is_not_declared_as_json_is_a_415(content_type):
    async with running_server("x") as server:
        status, answer = await post_raw(server, b'{"prompt": "a"}', content_type)
        assert status == 415
        assert "Content-Type: application/json" in answer["error"]["message"]


@pytest.mark.parametrize("content_type", ["application/json; charset=utf-8", "Application/JSON"])
async def test_spellings_of_json_are_taken(content_type):
    async with running_server("x") as server:
        assert (await post_raw(server, b'{"prompt": "a"}', content_type))[0] == 200


async def test_body_over_the_limit_is_a_413():
    async with running_server("x") as server:
        status, answer = await post_raw(server, io.BytesIO(b'{"prompt": "' + b"a" * 9 * 2**20 + b'"}'))
        assert (status, answer["error"]["code"]) == (413, "body_too_large")


async def test_wrong_value_names_its_path():
    async with running_server("x") as server:
        for body, param in (
            ({"prompt": "a", "max_tokens": "5"}, "max_tokens"),
            ({"prompt": ["a", 1.5]}, "prompt[1]"),
            ({"prompt": "a", "stop": [1]}, "stop[0]"),
            ({"prompt": "a", "stream": True, "stream_options": {"x": 1}}, "stream_options.x"),
            ({"prompt": "a", "unheard": 1}, "unheard"),
        ):
            status, answer = await post_raw(server, json.dumps(body).encode())
            assert (status, answer["error"]["param"]) == (400, param)


async def test_error_that_quotes_the_request_is_cut():
    async with running_server("x") as server:
        status, answer = await post_raw(server, json.dumps({"prompt": "a", "x" * 100_000: 1}).encode())
        assert status == 400
        assert len(json.dumps(answer)) < 5000


@pytest.mark.parametrize(
    "body",
    [
        b'{"prompt": [' + b"[]," * 100_000 + b"[]]}",
        b'{"prompt": "x", "metadata": {"a": [' + b"{}," * 100_000 + b"1]}}",
        b'{"prompt": [' + b"[" * 100_001,
        b"[" * 1_000_000,
        b'{"prompt": "x", "metadata": {"a": [' + b'{"b":[]},' * 60_000 + b"1]}}",
    ],
)  # fmt: skip
async def test_more_objects_and_lists_than_any_request_needs_are_refused_undecoded(body):
    async with running_server("x") as server:
        status, answer = await post_raw(server, body)
        assert status == 400
        assert "more than 100000 objects and lists" in answer["error"]["message"]


async def test_brackets_within_a_text_and_many_prompts_of_token_ids_are_no_such_body():
    async with running_server("x") as server:
        text = json.dumps({"prompt": '[{"\\[' * 60_000}).encode()
        status, answer = await post_raw(server, text)
        assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")
        status, _ = await post_raw(server, json.dumps({"prompt": [[1, 2]] * 1024, "max_tokens": 1}).encode())
        assert status == 200
