"""HTTP over an engine, from loading the text side to the drain: what every frontend does, whoever started it."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import socket
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pagewire.ipc.config import EngineConfig, ModelOptions
from pagewire.ipc.curve import ClientKeys
from pagewire.ipc.server_config import ServerConfig

from ..client.engine_client import AsyncEngineClient
from ..client.key_files import read_client_keys
from ..exchange.siblings import Siblings
from .shutdown import StopRequests, serve_until_stopped, until_stopped
from .startup_report import StartupReport

if TYPE_CHECKING:
    from ..templates.renderer import ChatRenderer
    from ..text.text_side import TextSide

_LOADING = "loading"  # the name of the thread that does


async def serve_http(
    connect: Callable[[], Awaitable[AsyncEngineClient]],
    model_path: str,
    engine_config: EngineConfig,
    server_config: ServerConfig,
    listeners: Sequence[socket.socket],
    requests: StopRequests,
    report: StartupReport,
    on_ready: Callable[[AsyncEngineClient], None],
    siblings: Siblings | None = None,
) -> int:
    """Load the text side while the engine loads, then serve until a stop or the engine's end; return the exit code.

    Args:
        connect: brings the client of the engine; the caller closes it.
        model_path: where the tokenizer is.
        engine_config: how chat templates and defaults are chosen, and how long a drain may take.
        server_config: all about HTTP.
        listeners: sockets that listen.
        requests: for an end.
        report: takes the phases of this process.
        on_ready: called when requests are answered.
        siblings: the other frontends of this server, if there are any.

    Raises:
        Stopped: an end was asked for before that.
    """
    from ..http.service import HTTPService  # with aiohttp and tokenizers, while the engine loads

    async with _text_side(model_path, engine_config, server_config, report, requests) as (text, chats):
        client = await until_stopped(connect(), requests.first)
        service = HTTPService(client, text, chats, server_config, siblings)
        async with service.serving(listeners):
            requests.check()
            on_ready(client)
            timeout_s = engine_config.supervision.shutdown_timeout
            return await serve_until_stopped(client, service.drain(timeout_s), requests, timeout_s)


def read_own_keys(config: ServerConfig) -> ClientKeys | None:
    """Return the keys for the engine that a frontend attaches to; None if it has none.

    Raises:
        ConfigError: as `read_client_keys`.
    """
    if config.engine_key is None or config.curve_key is None:
        return None
    return read_client_keys(config.engine_key, config.curve_key)


def leave(code: int) -> int:
    """Return the exit code; but end the process here if a thread still loads, which the interpreter would wait for."""
    if any(thread.name.startswith(_LOADING) for thread in threading.enumerate()):
        sys.stderr.flush()
        os._exit(code)
    return code


@asynccontextmanager
async def _text_side(
    model_path: str,
    engine_config: EngineConfig,
    server_config: ServerConfig,
    report: StartupReport,
    requests: StopRequests,
) -> AsyncIterator[tuple[TextSide, ChatRenderer]]:
    """Load the text side and run the processes that render chats.

    Raises:
        Stopped: an end was asked for before they were ready.
    """
    from ..templates.renderer import chat_renderer

    with report.phase("load the tokenizer"):
        loading = _load_text_side(Path(model_path), engine_config.model, server_config.chat_template)
        text = await until_stopped(loading, requests.first)
    rendering = chat_renderer(
        dataclasses.replace(text.template, content_format=server_config.chat_template_content_format),
        default_arguments=server_config.default_chat_template_kwargs,
        trusts_requests=server_config.trust_request_chat_template,
        log_level=engine_config.log_level,
    )
    async with AsyncExitStack() as stack:
        with report.phase("compile the chat template"):
            chats = await until_stopped(stack.enter_async_context(rendering), requests.first)
        yield text, chats


async def _load_text_side(model_path: Path, options: ModelOptions, chat_template: str | None) -> TextSide:
    from ..text.text_side import load_text_side

    # Not one of the loop's own threads, which it waits for at its end: what reads a file can't be interrupted.
    thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=_LOADING)
    try:
        return await asyncio.get_running_loop().run_in_executor(
            thread, lambda: load_text_side(model_path, options, chat_template=chat_template)
        )
    finally:
        thread.shutdown(wait=False)
