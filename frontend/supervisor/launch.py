"""The supervisor: `pagewire serve` and `pagewire engine` from the first check to the ordered stop.

What can fail at once fails first: the port is bound and the model found before a process is started.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import uvloop

from pagewire.ipc.config import EngineConfig
from pagewire.ipc.curve import ServerKeys
from pagewire.ipc.endpoints import check_address, check_listen_address, core_address, ipc_path
from pagewire.ipc.logs import setup_logging
from pagewire.ipc.server_config import ListenConfig, ServerConfig

from ..client.engine_client import AsyncEngineClient
from ..client.key_files import read_server_keys
from ..http.listener import describe_listeners, open_listeners
from ..tracing.tracing import check_tracing
from .attach_notice import noticing_silence
from .engine_process import prepare_engine, start_cores
from .farewell import say_farewell
from .frontends import Frontends
from .host import run_host
from .running_fleet import RunningFleet
from .serving import leave, read_own_keys, serve_http
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

logger = logging.getLogger(__name__)

ATTACH_TIMEOUT_S = 600.0  # an engine that was started at the same time may still be loading its model


def serve(engine_config: EngineConfig, server_config: ServerConfig) -> int:
    """Serve HTTP until a signal or the engine's end; return the exit code. A host but the first one computes only.

    Raises:
        StartError: what the command line asks can't be met, or the machine lacks something.
    """
    if engine_config.parallel.node_rank > 0:
        return run_host(engine_config)
    setup_logging("frontend", engine_config.log_level, engine_config.log_format)
    exit_at_sigterm()
    check_tracing(server_config.otlp_traces_endpoint)
    report = StartupReport()
    with open_listeners(server_config) as listeners:
        address = server_config.engine
        if address is not None:
            check_address(address)
        else:
            with report.phase("find the model"):
                engine_config = prepare_engine(engine_config)
        if server_config.api_server_count > 1:
            code = uvloop.run(_serve_by_many(engine_config, server_config, listeners, report))
        elif address is not None:
            code = uvloop.run(_serve_attached(address, engine_config, server_config, listeners, report))
        else:
            code = uvloop.run(_serve_own(engine_config, server_config, listeners, report))
    return leave(code)


def run_engine(engine_config: EngineConfig, listen_config: ListenConfig) -> int:
    """Run an engine without HTTP until a signal or its end; return the exit code. As above for other hosts.

    Raises:
        StartError: what the command line asks can't be met, or the machine lacks something.
    """
    if engine_config.parallel.node_rank > 0:
        return run_host(engine_config)
    setup_logging("engine", engine_config.log_level, engine_config.log_format)
    exit_at_sigterm()
    listen, curve_key = listen_config.listen, listen_config.curve_key
    for rank in range(engine_config.parallel.data_parallel_size):
        address = core_address(listen, rank)
        check_listen_address(address, has_keys=curve_key is not None, insecure=listen_config.insecure)
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

    def log_ready(client: AsyncEngineClient) -> None:
        _log_ready(report.lines(client.info), listeners, server_config)

    try:
        async with _running_engine(engine_config, signals) as engine:
            return await serve_http(
                lambda: engine.connect("frontend"),
                engine_config.model.model_path,
                engine_config,
                server_config,
                listeners,
                signals,
                report,
                log_ready,
            )
    except Stopped:
        return signals.exit_code


async def _serve_attached(
    address: str,
    engine_config: EngineConfig,
    server_config: ServerConfig,
    listeners: list[socket.socket],
    report: StartupReport,
) -> int:
    signals = StopSignals()
    try:
        async with await _attach(address, server_config, signals, report) as client:

            async def attached() -> AsyncEngineClient:
                return client

            def log_ready(client: AsyncEngineClient) -> None:
                _log_ready(describe_engine(client.info), listeners, server_config)

            return await serve_http(
                attached, client.info.model_path, engine_config, server_config, listeners, signals, report, log_ready
            )
    except Stopped:
        return signals.exit_code


async def _serve_by_many(
    engine_config: EngineConfig, server_config: ServerConfig, listeners: list[socket.socket], report: StartupReport
) -> int:
    """Serve with several frontends on one port, which attach to an engine of this process's own, or to another one."""
    signals = StopSignals()
    timeout_s = engine_config.supervision.shutdown_timeout
    try:
        async with AsyncExitStack() as stack:
            address = server_config.engine
            fleet: RunningFleet | None = None
            if address is None:
                fleet = await stack.enter_async_context(_running_engine(engine_config, signals))
                address = fleet.address
            frontends = Frontends(engine_config, server_config, address, listeners)
            await stack.enter_async_context(frontends.running())
            if fleet is None:
                client = await stack.enter_async_context(await _attach(address, server_config, signals, report))
            else:
                client = await until_stopped(fleet.connect("launcher"), signals.first)
            await until_stopped(frontends.ready(), signals.first)
            lines = describe_engine(client.info) if fleet is None else report.lines(client.info)
            _log_ready(lines, listeners, server_config)
            code = await serve_until_stopped(
                client, frontends.drain(timeout_s), signals, timeout_s, ended=frontends.watch(client)
            )
            if fleet is not None:
                await _say_farewells(fleet, None)
            return code
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
            await _say_farewells(engine, keys)
            return code
    except Stopped:
        return signals.exit_code


@asynccontextmanager
async def _running_engine(
    config: EngineConfig, signals: StopSignals, *, address: str | None = None, keys: ServerKeys | None = None
) -> AsyncIterator[RunningFleet]:
    cores = start_cores(config, address=address, keys=keys)
    running = RunningFleet(cores)
    try:
        yield running
    except Stopped:
        await running.aclose()
        # Before it is ready it owes nobody anything, and one that loads its model would take its time to end.
        for core in cores:
            core.process.begin_kill()
        raise
    finally:
        await running.aclose()
        await stop_engine(cores, signals)


async def _say_farewells(fleet: RunningFleet, keys: ServerKeys | None) -> None:
    """Tell the clients of cores that were given up, if that is the engine's end, why."""
    death = None if fleet.client is None else fleet.client.death
    if death is not None:
        given_up = [core.listen_address for core in fleet.given_up]
        await asyncio.gather(*(asyncio.to_thread(say_farewell, address, keys, death) for address in given_up))


async def _attach(
    address: str, server_config: ServerConfig, signals: StopSignals, report: StartupReport
) -> AsyncEngineClient:
    with report.phase("attach to the engine"):
        logger.info("waiting for the engine at %s, which may still be loading its model", address)
        keys = read_own_keys(server_config)
        connecting = AsyncEngineClient.connect(address, name="frontend", keys=keys, timeout_s=ATTACH_TIMEOUT_S)
        with noticing_silence(address, ATTACH_TIMEOUT_S):
            return await until_stopped(connecting, signals.first)


def _log_ready(lines: list[str], listeners: list[socket.socket], config: ServerConfig) -> None:
    for line in lines:
        logger.info("%s", line)
    where = describe_listeners(listeners, is_tls=config.ssl_certfile is not None)
    if config.uds is None and not config.needs_key and config.host not in ("127.0.0.1", "localhost", "::1"):
        logger.warning("anyone who can reach %s may use this server: no --api-key is set", where)
    logger.info("ready: serving %s", where)
