"""One of several frontends: `python -m pagewire.frontend.supervisor.frontend_process`, started by a launcher."""

from __future__ import annotations

import logging
import os
import sys
from contextlib import AsyncExitStack

import uvloop

from pagewire.ipc.errors import PagewireError, ProtocolError, StartError
from pagewire.ipc.logs import setup_logging
from pagewire.ipc.process import Bootstrap, ParentWatch, read_bootstrap, wake_when_parent_ends

from ..client.core_link import LinkOptions
from ..client.engine_client import AsyncEngineClient
from ..exchange.siblings import Siblings
from ..http.listener import take_listeners
from .serving import leave, read_own_keys, serve_http
from .shutdown import ParentOrders, Stopped, until_stopped
from .startup_report import StartupReport

logger = logging.getLogger("pagewire.frontend.supervisor.frontend_process")  # __name__ is __main__ here


def main() -> int:
    """Read the bootstrap, serve, return the exit code."""
    try:
        bootstrap = read_bootstrap()
    except ProtocolError as exc:
        sys.stderr.write(f"{exc}\n")
        return 2
    setup_logging(bootstrap.name, bootstrap.log_level, bootstrap.log_format)
    wake_when_parent_ends()
    try:
        return leave(uvloop.run(_serve(bootstrap)))
    except PagewireError as exc:
        logger.error("%s", exc)
        return leave(exc.exit_code if isinstance(exc, StartError) else 1)


async def _serve(bootstrap: Bootstrap) -> int:
    orders = ParentOrders(ParentWatch(bootstrap.parent_pid))
    config, server_config = bootstrap.config, bootstrap.server_config
    assert config is not None
    assert server_config is not None
    listeners = take_listeners(bootstrap.listener_fds)
    try:
        async with AsyncExitStack() as stack:

            async def connect() -> AsyncEngineClient:
                client = await AsyncEngineClient.connect(
                    bootstrap.address,
                    name=bootstrap.name,
                    keys=read_own_keys(server_config),
                    timeout_s=None,  # the launcher ends this process when it gives up
                    options=_link_options(bootstrap),
                )
                return await stack.enter_async_context(client)

            async def known(client: AsyncEngineClient) -> AsyncEngineClient:
                return client

            model_path = config.model.model_path
            attached = None
            if not model_path:  # the engine's own, which only it knows
                attached = await until_stopped(connect(), orders.first)
                model_path = attached.info.model_path
            return await serve_http(
                connect if attached is None else lambda: known(attached),
                model_path,
                config,
                server_config,
                listeners,
                orders,
                StartupReport(),
                lambda _client: _tell_ready(bootstrap.ready_fd),
                Siblings(bootstrap.frontend_index, server_config.api_server_count, bootstrap.exchange_fd),
            )
    except Stopped:
        return orders.exit_code


def _link_options(bootstrap: Bootstrap) -> LinkOptions:
    """Return the patience of a client of the launcher's own engine, which the launcher watches; else the usual one."""
    config, server_config = bootstrap.config, bootstrap.server_config
    assert config is not None
    if server_config is not None and server_config.engine is not None:
        return LinkOptions()
    return LinkOptions(
        silence_limit_s=config.supervision.stall_limit,
        max_held_back=config.scheduler.max_waiting_requests,
        reconnect_limit_s=None,
    )


def _tell_ready(ready_fd: int) -> None:
    os.write(ready_fd, b"\0")
    os.close(ready_fd)


if __name__ == "__main__":
    sys.exit(main())
