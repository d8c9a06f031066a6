"""Where a command's answers come from: a server that runs, or one that is started for it."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from pagewire.ipc.config import EngineConfig
from pagewire.ipc.logs import setup_logging

from .address import DEFAULT_URL
from .connection import ServerConnection, is_serving

Say = Callable[[str], None]


@contextmanager
def open_connection(
    url: str | None, api_key: str | None, engine_config: EngineConfig | None, say: Say
) -> Iterator[ServerConnection]:
    """Connect to a server, and stop the engine that was started for it at the end.

    Args:
        url: of a server that runs; None if none is named.
        api_key: for it.
        engine_config: of the engine to start where no server is named; None: the one at `DEFAULT_URL` is meant, and
            if there is none, the packaged model is started.
        say: prints a line on what is done.

    Raises:
        StartError: the server can't be reached, or the engine can't start.
    """
    with contextlib.ExitStack() as stack:
        if url is None and engine_config is None and is_serving(DEFAULT_URL):
            url = DEFAULT_URL
            say(f"Using the server at {url}.")
        if url is not None:
            connection = ServerConnection(url, api_key=api_key)
        else:
            connection = _start(engine_config or EngineConfig(log_level="warning"), stack, say)
        stack.callback(connection.close)
        yield connection


def _start(config: EngineConfig, stack: contextlib.ExitStack, say: Say) -> ServerConnection:
    """Start an engine, which ends with the stack."""
    from .own_server import OwnServer

    stack.enter_context(leaving_in_order())
    setup_logging("frontend", config.log_level, config.log_format)
    say(f"Starting an engine for {config.model.model} in this terminal; `pagewire serve` keeps one for everybody.")
    started = time.perf_counter()
    server = OwnServer(config)
    stack.callback(server.close)
    info = server.info
    say(
        f"Ready after {time.perf_counter() - started:.1f} s: {info.dtype} on {info.device}, context of "
        f"{info.max_model_len} tokens, room for {info.num_blocks * info.block_size} in all."
    )
    return ServerConnection("http://localhost", uds=server.uds)


@contextmanager
def leaving_in_order() -> Iterator[None]:
    """Have an order to end, or the end of the terminal, close what is open: no folder, no screen is left behind."""
    if threading.current_thread() is not threading.main_thread():
        yield  # whoever has the main thread has its signals
        return

    def leave(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    # What is ignored stays so: nohup means it.
    orders = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, leave) for number in orders}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
