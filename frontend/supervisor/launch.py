"""The supervisor: `pagewire serve` and `pagewire engine` from the first check to the ordered stop.

What can fail at once fails first: the port is bound and the model found before a process is started.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import uvloop

from pagewire.ipc.config import EngineConfig, ServerConfig
from pagewire.ipc.endpoints import check_address, check_listen_address
from pagewire.ipc.logs import setup_logging

from ..client.engine_client import AsyncEngineClient
from ..http.listener import describe_listeners, open_listeners
from .engine_process import EngineProcess, prepare_engine
from .running_engine import RunningEngine
from .startup_report import StartupReport, describe_engine

if TYPE_CHECKING:
    from ..text.text_side import TextSide

logger = logging.getLogger(__name__)

T = TypeVar("T")

ATTACH_TIMEOUT_S = 600.0  # an engine that was started at the same time may still be loading its model


def serve(engine_config: EngineConfig, server_config: ServerConfig) -> int:
    """Serve HTTP until a signal or the engine's end; return the exit code.

    Raises:
        StartError: what the command line asks can't be met, or the machine lacks something.
    """
    setup_logging("frontend", engine_config.log_level)
    report = StartupReport()
    with open_listeners(server_config) as listeners:
        if server_config.engine is not None:
            check_address(server_config.engine)
            return uvloop.run(_serve_attached(server_config.engine, engine_config, server_config, listeners, report))
        with report.phase("find the model"):
            engine_config = prepare_engine(engine_config)
        return uvloop.run(_serve_own(engine_config, server_config, listeners, report))


def run_engine(engine_config: EngineConfig, listen: str, insecure: bool) -> int:
    """Run an engine without HTTP until a signal or its end; return the exit code.

    Raises:
        StartError: what the command line asks can't be met, or the machine lacks something.
    """
    setup_logging("engine", engine_config.log_level)
    check_listen_address(listen, insecure=insecure)
    report = StartupReport()
    with report.phase("find the model"):
        engine_config = prepare_engine(engine_config)
    return uvloop.run(_run_engine(engine_config, listen, report))


class _Stopped(Exception):
    """A signal asks for an ordered stop."""


async def _serve_own(
    engine_config: EngineConfig, server_config: ServerConfig, listeners: list[socket.socket], report: StartupReport
) -> int:
    stop = _stop_on_signals()
    try:
        async with _running_engine(engine_config) as engine:
            from ..http.service import HTTPService  # with aiohttp and tokenizers, while the engine loads

            with report.phase("load the tokenizer"):
                text = await _load_text_side(engine_config.model.model_path, engine_config, server_config)
            client = await _until_stopped(engine.connect("frontend"), stop)
            service = HTTPService(client, text, server_config)
            async with service.serving(listeners):
                _log_ready(report.lines(client.info), listeners, server_config)
                await _until_stopped(client.wait_dead(), stop)
                return _engine_ended(client)
    except _Stopped:
        return 0


async def _serve_attached(
    address: str,
    engine_config: EngineConfig,
    server_config: ServerConfig,
    listeners: list[socket.socket],
    report: StartupReport,
) -> int:
    from ..http.service import HTTPService

    stop = _stop_on_signals()
    try:
        with report.phase("attach to the engine"):
            logger.info("waiting for the engine at %s, which may still be loading its model", address)
            connecting = AsyncEngineClient.connect(address, name="frontend", timeout_s=ATTACH_TIMEOUT_S)
            client = await _until_stopped(connecting, stop)
        async with client:
            with report.phase("load the tokenizer"):
                text = await _load_text_side(client.info.model_path, engine_config, server_config)
            service = HTTPService(client, text, server_config)
            async with service.serving(listeners):
                _log_ready(describe_engine(client.info), listeners, server_config)
                await _until_stopped(client.wait_dead(), stop)
                return _engine_ended(client)
    except _Stopped:
        return 0


async def _run_engine(config: EngineConfig, listen: str, report: StartupReport) -> int:
    stop = _stop_on_signals()
    try:
        async with _running_engine(config, address=listen) as engine:
            client = await _until_stopped(engine.connect("launcher"), stop)
            for line in report.lines(client.info):
                logger.info("%s", line)
            logger.info("ready: clients attach at %s", listen)
            await _until_stopped(client.wait_dead(), stop)
            return _engine_ended(client)
    except _Stopped:
        return 0


@asynccontextmanager
async def _running_engine(config: EngineConfig, address: str | None = None) -> AsyncIterator[RunningEngine]:
    engine = EngineProcess(config, address=address)
    running = RunningEngine(engine)
    try:
        yield running
    finally:
        await running.aclose()
        await asyncio.to_thread(engine.stop)


async def _load_text_side(model_path: str, engine_config: EngineConfig, server_config: ServerConfig) -> TextSide:
    from ..text.text_side import load_text_side

    return await asyncio.to_thread(
        load_text_side, Path(model_path), engine_config.model, chat_template=server_config.chat_template
    )


def _stop_on_signals() -> asyncio.Event:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop


async def _until_stopped(work: Coroutine[Any, Any, T], stop: asyncio.Event) -> T:  # Any: what asyncio sends
    """Await `work`; raise `_Stopped` if a signal comes first."""
    working = asyncio.ensure_future(work)
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise _Stopped
        return working.result()
    finally:
        stopping.cancel()
        if not working.done():
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)


def _engine_ended(client: AsyncEngineClient) -> int:
    logger.error("the engine is gone: %s", client.death)
    return 1


def _log_ready(lines: list[str], listeners: list[socket.socket], config: ServerConfig) -> None:
    for line in lines:
        logger.info("%s", line)
    where = describe_listeners(listeners)
    if config.uds is None and not config.api_key and config.host not in ("127.0.0.1", "localhost", "::1"):
        logger.warning("anyone who can reach %s may use this server: no --api-key is set", where)
    logger.info("ready: serving %s", where)
