"""The HTTP application: its routes, its start and its stop.

app = create_app(serving, config)
async with serve(app, [listener]):
await stop_requested.wait()
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Sequence

from aiohttp import web
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector

from pagewire.ipc.config import ServerConfig

from ..openai import chat, completions, models, tokenize
from ..openai.serving import SERVING, Serving
from . import health
from .http_protocol import HTTPProtocol
from .middleware import middlewares

# A context of a million tokens, as text or as ids. Decoding holds the event loop: 20 ms for 8 MiB of text, 0.35 s for
# the worst body, a list of four million one-digit ids (measured on a busy 2-core machine).
MAX_BODY_BYTES = 8 * 2**20
_KEEP_ALIVE_S = 75.0  # longer than the 60 s that proxies keep idle connections, so that they close them, not we
_SHORTEST_TIMEOUT_S = 0.001  # aiohttp takes 0 for "no limit"


def create_app(serving: Serving, config: ServerConfig) -> web.Application:
    """Build the application of one served model.

    Args:
        serving: the model and its engine, ready for requests.
        config: the API keys are read from it.
    """
    app = web.Application(middlewares=middlewares(serving, config.api_key), client_max_size=MAX_BODY_BYTES)
    app[SERVING] = serving
    registry = CollectorRegistry()
    registry.register(serving.metrics)
    for collector in (ProcessCollector, PlatformCollector, GCCollector):
        collector(registry=registry)
    app[health.REGISTRY] = registry
    app.router.add_post("/v1/chat/completions", chat.create_chat_completion)
    app.router.add_post("/v1/completions", completions.create_completion)
    app.router.add_get("/v1/models", models.list_models)
    app.router.add_get("/v1/models/{model:.+}", models.retrieve_model)
    app.router.add_post("/tokenize", tokenize.tokenize)
    app.router.add_post("/detokenize", tokenize.detokenize)
    app.router.add_get("/health", health.health)
    app.router.add_route("*", "/ping", health.health)  # SageMaker's name, GET or POST
    app.router.add_get("/live", health.live)
    app.router.add_get("/version", health.version)
    app.router.add_get("/metrics", health.metrics)
    app.router.add_get("/metrics/", health.metrics)
    return app


@contextlib.asynccontextmanager
async def serve(
    app: web.Application, listeners: Sequence[socket.socket], *, shutdown_timeout_s: float = 0.0
) -> AsyncIterator[None]:
    """Accept requests on listening sockets while the context is open; then stop.

    On leaving, nothing new is accepted, what runs may finish within `shutdown_timeout_s`, the rest is cut off and
    aborted in the engine. The sockets are closed.
    """
    # handler_cancellation: a client that goes away ends its handler, and so aborts its generations.
    runner = web.AppRunner(
        app, handler_cancellation=True, shutdown_timeout=max(shutdown_timeout_s, _SHORTEST_TIMEOUT_S)
    )
    await runner.setup()
    try:
        for listener in listeners:
            await _Site(runner, listener, write_timeout_s=app[SERVING].times.write_timeout_s).start()
        yield
    finally:
        await runner.cleanup()


class _Site(web.BaseSite):
    """A listening socket of either kind; aiohttp's own class takes TCP sockets alone under uvloop."""

    def __init__(self, runner: web.AppRunner, listener: socket.socket, *, write_timeout_s: float) -> None:
        super().__init__(runner)
        self._listener = listener
        self._write_timeout_s = write_timeout_s

    @property
    def name(self) -> str:
        return f"socket:{self._listener.getsockname()}"

    async def start(self) -> None:
        await super().start()
        loop = asyncio.get_running_loop()
        if self._listener.family == socket.AF_UNIX:
            self._server = await loop.create_unix_server(self._connect, sock=self._listener)
        else:
            self._server = await loop.create_server(self._connect, sock=self._listener)

    def _connect(self) -> HTTPProtocol:
        server = self._runner.server
        assert server is not None
        return HTTPProtocol(
            server,
            write_timeout_s=self._write_timeout_s,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=_KEEP_ALIVE_S,
            access_log=None,
        )
