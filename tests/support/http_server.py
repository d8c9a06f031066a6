"""The HTTP frontend over a scripted core: real sockets on both sides, the real tokenizer code, no model.

The vocabulary is one token a byte, so scripts are written as text: byte b is token b, and `SPECIALS` follow.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import socket
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import aiohttp
from aiohttp import web
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from pagewire.checkpoint.generation_config import GenerationDefaults
from pagewire.checkpoint.tokenizer.facts import TokenizerFacts
from pagewire.frontend.answers.answer_formats import AnswerFormats
from pagewire.frontend.client.engine_client import AsyncEngineClient
from pagewire.frontend.http import server
from pagewire.frontend.http.metrics import Metrics
from pagewire.frontend.http.sse import StreamTimes
from pagewire.frontend.openai.serving import Serving
from pagewire.frontend.templates.renderer import ChatRenderer, SplitRenderer
from pagewire.frontend.text.generation import TextGenerator
from pagewire.frontend.tokenizer.tokenizer import Tokenizer
from pagewire.frontend.tracing.tracing import Tracing
from pagewire.ipc.requests import AddRequest
from pagewire.ipc.server_config import ServerConfig
from tests.support.fake_core import FakeCore, engine_info
from tests.support.templates import InProcessRenderer

BOS, EOS, TURN = 256, 257, 258
SPECIALS = {"<bos>": BOS, "<eos>": EOS, "<turn>": TURN}
VOCAB_SIZE = 259
CHAT_TEMPLATE = (
    "{% for message in messages %}<turn>{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<turn>assistant: {% endif %}"
)


@functools.cache
def byte_tokenizer() -> Tokenizer:
    """A vocabulary whose token ids are bytes."""
    alphabet = _byte_characters()
    backend = Backend(models.BPE(vocab={character: byte for byte, character in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, special=True) for token in SPECIALS])
    return Tokenizer(backend, TokenizerFacts(special_tokens={"bos_token": "<bos>", "eos_token": "<eos>"}))


def _byte_characters() -> list[str]:
    # GPT-2's printable stand-ins: bytes that have none of their own follow from U+0100 on.
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def ids_of(text: str) -> list[int]:
    """The token ids of a text."""
    return list(text.encode())


@dataclass
class Running:
    """A server under test.

    Attributes:
        core: the scripted engine.
        client: the connection to it.
        http: a session whose relative URLs are the server's.
        app: what serves.
    """

    core: FakeCore
    client: AsyncEngineClient
    serving: Serving
    http: aiohttp.ClientSession
    url: str
    app: web.Application

    async def post(self, path: str, **body: Any) -> tuple[int, Any]:
        """Send a JSON body; return the status and the parsed answer."""
        async with self.http.post(path, json=body) as response:
            return response.status, await response.json()

    async def complete(self, **body: Any) -> Any:
        """Return the answer of /v1/completions, which must be a 200."""
        status, answer = await self.post("/v1/completions", **{"prompt": "p", **body})
        assert status == 200, answer
        return answer

    async def chat(self, **body: Any) -> Any:
        """Return the answer of /v1/chat/completions, which must be a 200."""
        status, answer = await self.post("/v1/chat/completions", **{"messages": [message("hi")], **body})
        assert status == 200, answer
        return answer

    async def stream(self, path: str, **body: Any) -> list[Any]:
        """Return the chunks of a stream, which must be a 200 and end in [DONE]."""
        async with self.http.post(path, json={"stream": True, **body}) as response:
            assert response.status == 200, await response.text()
            assert response.content_type == "text/event-stream"
            *chunks, done = parse_events(await response.text())
        assert done == "[DONE]"
        return chunks

    async def stream_completion(self, **body: Any) -> list[Any]:
        """Return the chunks of a streamed completion."""
        return await self.stream("/v1/completions", **{"prompt": "p", **body})

    async def stream_chat(self, **body: Any) -> list[Any]:
        """Return the chunks of a streamed chat."""
        return await self.stream("/v1/chat/completions", **{"messages": [message("hi")], **body})

    async def metric(self, name: str, **labels: str) -> float:
        """Return one sample of /metrics."""
        async with self.http.get("/metrics") as response:
            text = await response.text()
        for line in text.splitlines():
            if line.startswith(name + "{") and all(f'{key}="{value}"' in line for key, value in labels.items()):
                return float(line.rsplit(" ", 1)[1])
        raise AssertionError(f"no sample {name} {labels}")


def message(content: Any, role: str = "user") -> dict[str, Any]:
    """A chat message."""
    return {"role": role, "content": content}


def parse_events(text: str) -> list[Any]:
    """Return the data of server-sent events, parsed; comments are left out."""
    blocks = [block for block in text.split("\n\n") if block and not block.startswith(":")]
    assert all(block.startswith("data: ") for block in blocks), blocks
    return [data if (data := block.removeprefix("data: ")) == "[DONE]" else json.loads(data) for block in blocks]


def joined_text(chunks: list[Any], index: int = 0) -> str:
    """The text of one choice of a stream, chat or completion."""
    choices = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
    return "".join(choice["text"] if "text" in choice else choice["delta"].get("content", "") for choice in choices)


@contextlib.asynccontextmanager
async def running_server(
    *texts: str | list[int],
    answer: Callable[[AddRequest], list[list[int]]] | None = None,
    config: ServerConfig | None = None,
    times: StreamTimes | None = None,
    defaults: GenerationDefaults | None = None,
    info: dict[str, object] | None = None,
    headers: dict[str, str] | None = None,
    log_requests: bool = False,
    chats: ChatRenderer | None = None,
    formats: AnswerFormats | None = None,
    tracing: Tracing | None = None,
    clock: Callable[[], float] = time.monotonic,
    **core_options: Any,
) -> AsyncIterator[Running]:
    """Serve a core whose child c answers texts[c] (or token ids) and the end token; the last text repeats."""

    def scripted(request: AddRequest) -> list[list[int]]:
        scripts = [ids_of(text) if isinstance(text, str) else text for text in texts or ("hello",)]
        return [[*scripts[min(child, len(scripts) - 1)], EOS] for child in range(request.task.n)]

    facts = {"vocab_size": VOCAB_SIZE, "eos_token_ids": (EOS,), "bos_token_id": BOS, **(info or {})}
    tokenizer = byte_tokenizer()
    async with (
        FakeCore(answer=answer or scripted, info=engine_info(**facts), **core_options) as core,
        await AsyncEngineClient.connect(core.address) as client,
        contextlib.AsyncExitStack() as stack,
    ):
        metrics = Metrics(client.info.served_model_names[0], client.info)
        client.add_core_listener(metrics.step_done)
        serving = Serving(
            info=client.info,
            generator=TextGenerator(client, tokenizer),
            tokenizer=tokenizer,
            chats=chats or SplitRenderer(InProcessRenderer(CHAT_TEMPLATE), None),
            defaults=defaults or GenerationDefaults(),
            formats=formats or AnswerFormats(),
            metrics=metrics,
            times=times or StreamTimes(),
            request_timeout_s=config.request_timeout if config is not None else None,
            forces_usage=config is not None and config.enable_force_include_usage,
            names_ids=config is not None and config.return_tokens_as_token_ids,
            log_requests=log_requests,
            tracing=tracing,
            started_at=1_700_000_000,
            clock=clock,
        )
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        listener.setblocking(False)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        app = server.create_app(serving, config or ServerConfig())
        await stack.enter_async_context(server.serve(app, [listener]))
        http = await stack.enter_async_context(aiohttp.ClientSession(url, headers=headers))
        yield Running(core, client, serving, http, url, app)


async def aborted(core: FakeCore) -> None:
    """Wait until nothing runs in the core."""
    async with asyncio.timeout(10):
        while core.running:  # noqa: ASYNC110 - the fake has no event for it
            await asyncio.sleep(0)
