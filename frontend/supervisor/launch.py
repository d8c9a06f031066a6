"""The supervisor: `pagewire serve` and `pagewire engine` from the first check to the ordered stop.

What can fail at once fails first: the port is bound and the model found before a process is started.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import uvloop

from pagewire.ipc.config import EngineConfig, ModelOptions
from pagewire.ipc.curve import ClientKeys, ServerKeys
from pagewire.ipc.endpoints import check_address, check_listen_address, ipc_path
from pagewire.ipc.logs import setup_logging
from pagewire.ipc.server_config import ListenConfig, ServerConfig

from ..client.engine_client import AsyncEngineClient
from ..client.key_files import read_client_keys, read_server_keys
from ..http.listener import describe_listeners, open_listeners
from .attach_notice import noticing_silence
from .engine_process import EngineProcess, prepare_engine
from .farewell import say_farewell
from .running_engine import RunningEngine
from .shutdown import (
    Stopped,
    StopSignals,
    drain_engine,
    exit_at_sigterm,
    serve_until_stopped,
    stop_engine,
    until_stopped,
)
from .startup_report import StartupReport, describe_engine

if TYPE_CHECKING:
    from ..templates.renderer import ChatRenderer
    from ..text.text_side import TextSide

logger = logging.getLogger(__name__)

ATTACH_TIMEOUT_S = 600.0  # an engine that was started at the same time may still be loading its model
_LOADING = "loading"  # the name of the thread that does


def serve(engine_config: EngineConfig, server_config: ServerConfig) -> int:
    """Serve HTTP until a signal or the engine's end; return the exit code.

    Raises:
        StartError: what the command line asks can't be met, or the machine lacks something.
    """
    setup_logging("frontend", engine_config.log_level)
    exit_at_sigterm()
    report = StartupReport()
    with open_listeners(server_config) as listeners:
        if server_config.engine is not None:
            check_address(server_config.engine)
            code = uvloop.run(_serve_attached(server_config.engine, engine_config, server_config, listeners, report))
        else:
            with report.phase("find the model"):
                engine_config = prepare_engine(engine_config)
            code = uvloop.run(_serve_own(engine_config, server_config, listeners, report))
    return _leave(code)


def run_engine(engine_config: EngineConfig, listen_config: ListenConfig) -> int:
    """Run an engine without HTTP until a signal or its end; return the exit code.

    Raises:
        StartError: what the command line asks can't be met, or the machine lacks something.
    """
    setup_logging("engine", engine_config.log_level)
    exit_at_sigterm()
    listen, curve_key = listen_config.listen, listen_config.curve_key
    check_listen_address(listen, has_keys=curve_key is not None, insecure=listen_config.insecure)
    keys = None if curve_key is None else read_server_keys(curve_key, listen_config.allow_clients)
    if listen_config.insecure and ipc_path(listen) is None:
        logger.warning("anyone who can reach %s may use this engine, and whoever is between may read all", listen)
    report = StartupReport()
    with report.phase("find the model"):
        engine_config = prepare_engine(engine_config)
    return uvloop.run(_run_engine(engine_config, listen, keys, report))


async def _serve_own(
    engine_config: EngineConfig, server_config: ServerConfig, listeners: list[socket.socket], report: StartupReport
) -> int:
    signals = StopSignals()
    try:
        async with _running_engine(engine_config, signals) as engine:
            from ..http.service import HTTPService  # with aiohttp and tokenizers, while the engine loads

            model_path = engine_config.model.model_path
            async with _text_side(model_path, engine_config, server_config, report, signals) as (text, chats):
                client = await until_stopped(engine.connect("frontend"), signals.first)
                service = HTTPService(client, text, chats, server_config)
                async with service.serving(listeners):
                    signals.check()
                    _log_ready(report.lines(client.info), listeners, server_config)
                    timeout_s = engine_config.supervision.shutdown_timeout
                    return await serve_until_stopped(client, service.drain(timeout_s), signals, timeout_s)
    except Stopped:
        return signals.exit_code


async def _serve_attached(
    address: str,
    engine_config: EngineConfig,
    server_config: ServerConfig,
    listeners: list[socket.socket],
    report: StartupReport,
) -> int:
    from ..http.service import HTTPService

    signals = StopSignals()
    try:
        with report.phase("attach to the engine"):
            logger.info("waiting for the engine at %s, which may still be loading its model", address)
            keys = _read_keys(server_config)
            connecting = AsyncEngineClient.connect(address, name="frontend", keys=keys, timeout_s=ATTACH_TIMEOUT_S)
            with noticing_silence(address, ATTACH_TIMEOUT_S):
                client = await until_stopped(connecting, signals.first)
        model_path = client.info.model_path
        async with client, _text_side(model_path, engine_config, server_config, report, signals) as (text, chats):
            service = HTTPService(client, text, chats, server_config)
            async with service.serving(listeners):
                signals.check()
                _log_ready(describe_engine(client.info), listeners, server_config)
                timeout_s = engine_config.supervision.shutdown_timeout
                return await serve_until_stopped(client, service.drain(timeout_s), signals, timeout_s)
    except Stopped:
        return signals.exit_code


async def _run_engine(config: EngineConfig, listen: str, keys: ServerKeys | None, report: StartupReport) -> int:
    signals = StopSignals()
    try:
        async with _running_engine(config, signals, address=listen, keys=keys) as engine:
            client = await until_stopped(engine.connect("launcher"), signals.first)
            for line in report.lines(client.info):
                logger.info("%s", line)
            logger.info("ready: clients attach at %s", listen)
            timeout_s = config.supervision.shutdown_timeout
            code = await serve_until_stopped(client, drain_engine(client, timeout_s), signals, timeout_s)
            if engine.has_given_up and client.death is not None:
                await asyncio.to_thread(say_farewell, listen, keys, client.death)
            return code
    except Stopped:
        return signals.exit_code


@asynccontextmanager
async def _running_engine(
    config: EngineConfig, signals: StopSignals, *, address: str | None = None, keys: ServerKeys | None = None
) -> AsyncIterator[RunningEngine]:
    engine = EngineProcess(config, address=address, keys=keys)
    running = RunningEngine(engine)
    try:
        yield running
    except Stopped:
        await running.aclose()
        # Before it is ready it owes nobody anything, and one that loads its model would take its time to end.
        engine.process.begin_kill()
        raise
    finally:
        await running.aclose()
        await stop_engine(engine, signals)


def _read_keys(config: ServerConfig) -> ClientKeys | None:
    """Return the keys for the engine that runs already; None if it has none."""
    if config.engine_key is None or config.curve_key is None:
        return None
    return read_client_keys(config.engine_key, config.curve_key)


@asynccontextmanager
async def _text_side(
    model_path: str,
    engine_config: EngineConfig,
    server_config: ServerConfig,
    report: StartupReport,
    signals: StopSignals,
) -> AsyncIterator[tuple[TextSide, ChatRenderer]]:
    """Load the text side and run the processes that render chats, while the engine loads the model.

    Raises:
        Stopped: a signal came before they were ready.
    """
    from ..templates.renderer import chat_renderer

    with report.phase("load the tokenizer"):
        loading = _load_text_side(Path(model_path), engine_config.model, server_config.chat_template)
        text = await until_stopped(loading, signals.first)
    rendering = chat_renderer(
        text.template,
        trusts_requests=server_config.trust_request_chat_template,
        log_level=engine_config.log_level,
    )
    async with AsyncExitStack() as stack:
        with report.phase("compile the chat template"):
            chats = await until_stopped(stack.enter_async_context(rendering), signals.first)
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


def _leave(code: int) -> int:
    """Return the exit code; but end the process here if a thread still loads, which the interpreter would wait for."""
    if any(thread.name.startswith(_LOADING) for thread in threading.enumerate()):
        sys.stderr.flush()
        os._exit(code)
    return code


def _log_ready(lines: list[str], listeners: list[socket.socket], config: ServerConfig) -> None:
    for line in lines:
        logger.info("%s", line)
    where = describe_listeners(listeners, is_tls=config.ssl_certfile is not None)
    if config.uds is None and not config.needs_key and config.host not in ("127.0.0.1", "localhost", "::1"):
        logger.warning("anyone who can reach %s may use this server: no --api-key is set", where)
    logger.info("ready: serving %s", where)
