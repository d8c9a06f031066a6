"""POST /tokenize and /detokenize."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from pagewire.frontend.tokenizer.tokenizer import Tokenizer
from tests.support.http_server import BOS, TURN, ids_of, message, running_server


async def test_text_becomes_ids_and_back():
    async with running_server() as server:
        status, answer = await server.post("/tokenize", prompt="é!", return_token_strs=True)
        assert status == 200
        assert answer == {"count": 3, "max_model_len": 256, "tokens": ids_of("é!"), "token_strs": ["Ã", "©", "!"]}
        status, answer = await server.post("/detokenize", tokens=[BOS, *ids_of("é!")])
        assert (status, answer) == (200, {"prompt": "<bos>é!"})


async def test_messages_become_the_ids_of_the_rendered_chat():
    async with running_server() as server:
        _, answer = await server.post("/tokenize", messages=[message("hi")])
        assert answer["tokens"] == [TURN, *ids_of("user: hi\n"), TURN, *ids_of("assistant: ")]
        _, answer = await server.post("/tokenize", messages=[message("hi")], add_generation_prompt=False)
        assert answer["tokens"] == [TURN, *ids_of("user: hi\n")]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {}),
        ("/tokenize", {"prompt": "x", "messages": [message("x")]}),
        ("/tokenize", {"prompt": 5}),
        ("/tokenize", {"prompt": "x", "unheard": 1}),
        ("/detokenize", {}),
        ("/detokenize", {"tokens": [-1]}),
        ("/detokenize", {"tokens": [259]}),
        ("/detokenize", {"tokens": [1] * 257}),
        ("/detokenize", {"tokens": [10**30]}),
        ("/detokenize", {"tokens": [True]}),
        ("/detokenize", {"tokens": "abc"}),
    ],
)
async def test_what_cannot_be_turned_is_a_400(path, body):
    async with running_server() as server:
        status, answer = await server.post(path, **body)
        assert status == 400
        assert answer["error"]["type"] == "invalid_request_error"


async def test_model_is_checked():
    async with running_server() as server:
        assert (await server.post("/tokenize", prompt="x", model="other"))[0] == 404
        assert (await server.post("/detokenize", tokens=[1], model="other"))[0] == 404


async def test_what_takes_long_is_done_beside_the_event_loop(monkeypatch):
    threads: dict[str, set[str]] = {"decode": set(), "token_spelling": set()}

    def note(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*args: Any, **options: Any) -> Any:
            threads[name].add(threading.current_thread().name.partition("_")[0])
            return original(*args, **options)

        return noted

    for name in threads:
        monkeypatch.setattr(Tokenizer, name, note(name, getattr(Tokenizer, name)))
    async with running_server() as server:
        _, answer = await server.post("/tokenize", prompt="abc")
        assert answer["token_strs"] is None
        assert not threads["token_spelling"], "nobody asked for spellings"
        await server.post("/tokenize", prompt="abc", return_token_strs=True)
        await server.post("/detokenize", tokens=[1, 2])
        assert threads == {"decode": {"tokenizer"}, "token_spelling": {"tokenizer"}}
