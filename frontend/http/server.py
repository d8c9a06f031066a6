"""The HTTP application: its routes, its start and its stop.

app = create_app(serving, config)
async with serve(app, [listener]):
await stop_requested.wait()
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Sequence

from aiohttp import web

from pagewire.ipc.server_config import ServerConfig

from ..anthropic import handlers as anthropic
from ..exchange.messages import Answer, AskEvents, AskResponse, Question
from ..exchange.siblings import Siblings
from ..openai import (
    adapters,
    admin,
    chat,
    chat_batch,
    completions,
    docs_page,
    embeddings,
    invocations,
    models,
    tokenize,
)
from ..openai.bodies import description
from ..openai.responses import handlers as responses
from ..openai.responses.shared import SHARED, SharedResponses
from ..openai.responses.store import STORE, ResponseStore
from ..openai.serving import SERVING, Serving
from ..web.engine_events import FEED, watch_engine
from ..web.engine_feed import EngineFeed
from ..web.page import Page
from . import health
from .access.api_keys import load_api_keys
from .access.cors import CrossOrigin
from .http_protocol import HTTPProtocol
from .middleware import add_headers_of_all_answers, leave_expect_to_middleware, middlewares
from .root_path import serve_below
from .sse import StreamTimes
from .together import TOGETHER, Together

# A context of a million tokens, as text or as ids. Decoding holds the event loop: 20 ms for 8 MiB of text, 0.35 s for a
# list of four million one-digit ids (measured on a busy 2-core machine). Bodies of as many lists would take seconds and
# are refused undecoded (MAX_CONTAINERS).
MAX_BODY_BYTES = 8 * 2**20
_KEEP_ALIVE_S = 75.0  # longer than the 60 s that proxies keep idle connections, so that they close them, not we
_SHORTEST_TIMEOUT_S = 0.001  # aiohttp takes 0 for "no limit"
_TLS_HANDSHAKE_TIMEOUT_S = 10.0


def create_app(serving: Serving, config: ServerConfig, siblings: Siblings | None = None) -> web.Application:
    """Build the application of one served model.

    Args:
        serving: the model and its engine, ready for requests.
        config: the API keys and the allowed origins are read from it.
        siblings: other frontends of the same server; `answer_siblings` is for them.

    Raises:
        ConfigError: the file of keys can't be read.
    """
    cross_origin = CrossOrigin(config)
    app = web.Application(
        middlewares=middlewares(serving, load_api_keys(config), cross_origin), client_max_size=MAX_BODY_BYTES
    )
    add_headers_of_all_answers(app, cross_origin)
    app[SERVING] = serving
    app[TOGETHER] = Together(serving, siblings)
    app[STORE] = ResponseStore(config.max_stored_responses)
    app[SHARED] = SharedResponses(app[STORE], siblings)
    app[FEED] = EngineFeed(serving.generator.client, app[TOGETHER].figures, serving.metrics.totals)
    app.on_shutdown.append(_end_background_work)
    app[admin.IS_ENABLED] = config.enable_admin
    app[adapters.MAY_CHANGE] = config.enable_admin or config.allow_runtime_lora_updating
    _add_routes(app.router, describes_itself=not config.disable_fastapi_docs)
    if config.ui:
        _add_page(app.router)
    return app


async def answer_siblings(app: web.Application, question: Question) -> Answer:
    """Return what this frontend alone has to say to another one's question."""
    if isinstance(question, AskResponse):
        return app[SHARED].answer(question)
    if isinstance(question, AskEvents):
        return await app[SHARED].answer_events(question)
    return app[TOGETHER].answer(question)


async def _end_background_work(app: web.Application) -> None:
    app[STORE].end_all()
    app[FEED].end()


def _add_routes(router: web.UrlDispatcher, *, describes_itself: bool) -> None:
    add = functools.partial(router.add_route, expect_handler=leave_expect_to_middleware)
    get = functools.partial(router.add_get, expect_handler=leave_expect_to_middleware)
    add("POST", "/v1/chat/completions", chat.create_chat_completion)
    add("POST", "/v1/chat/completions/batch", chat_batch.create_chat_completions)
    add("POST", "/v1/completions", completions.create_completion)
    add("POST", "/v1/embeddings", embeddings.create_embeddings)
    add("POST", "/v1/responses", responses.create_response)
    get("/v1/responses/{response_id}", responses.retrieve_response)
    add("DELETE", "/v1/responses/{response_id}", responses.delete_response)
    add("POST", "/v1/responses/{response_id}/cancel", responses.cancel_response)
    get("/v1/responses/{response_id}/input_items", responses.list_input_items)
    add("POST", "/v1/messages", anthropic.create_message)
    add("POST", "/v1/messages/count_tokens", anthropic.count_tokens)
    add("POST", "/invocations", invocations.invoke)
    get("/v1/models", models.list_models)
    get("/v1/models/{model:.+}", models.retrieve_model)
    add("POST", "/v1/load_lora_adapter", adapters.load_adapter)
    add("POST", "/v1/unload_lora_adapter", adapters.unload_adapter)
    add("POST", "/tokenize", tokenize.tokenize)
    add("POST", "/detokenize", tokenize.detokenize)
    if describes_itself:
        get("/openapi.json", description.describe)
        get("/docs", docs_page.show_docs)
    get("/v1/engine/events", watch_engine)
    _add_admin(add, get)
    get("/health", health.health)
    get("/ping", health.health)  # SageMaker's name
    add("POST", "/ping", health.health)
    get("/live", health.live)
    get("/load", health.load)
    get("/version", health.version)
    get("/metrics", health.metrics)
    get("/metrics/", health.metrics)


def _add_page(router: web.UrlDispatcher) -> None:
    page = Page()
    router.add_get("/", page.index, expect_handler=leave_expect_to_middleware)
    router.add_get("/ui/{name}", page.file, expect_handler=leave_expect_to_middleware)


def _add_admin(add: Callable[..., object], get: Callable[..., object]) -> None:
    for path, handler in (
        ("/sleep", admin.sleep),
        ("/wake_up", admin.wake_up),
        ("/pause", admin.pause),
        ("/resume", admin.resume),
        ("/abort_requests", admin.abort_requests),
        ("/reset_prefix_cache", admin.reset_prefix_cache),
    ):
        add("POST", path, admin.guarded(handler))
    get("/is_sleeping", admin.guarded(admin.is_sleeping))
    get("/is_paused", admin.guarded(admin.is_paused))
    get("/server_info", admin.guarded(admin.server_info))


@contextlib.asynccontextmanager
async def serve(
    app: web.Application,
    listeners: Sequence[socket.socket],
    *,
    shutdown_timeout_s: float = 0.0,
    tls: ssl.SSLContext | None = None,
    root_path: str = "",
) -> AsyncIterator[None]:
    """Accept requests on listening sockets while the context is open; then stop.

    On leaving, nothing new is accepted, what runs may finish within `shutdown_timeout_s`, the rest is cut off and
    aborted in the engine. The sockets are closed. `tls` makes it HTTPS, and below `root_path` routes are found as well.
    """
    # handler_cancellation: a client that goes away ends its handler, and so aborts its generations.
    runner = web.AppRunner(
        app, handler_cancellation=True, shutdown_timeout=max(shutdown_timeout_s, _SHORTEST_TIMEOUT_S)
    )
    await runner.setup()
    if root_path:
        assert runner.server is not None
        serve_below(runner.server, root_path)
    try:
        for listener in listeners:
            await _Site(runner, listener, app[SERVING].times, tls).start()
        yield
    finally:
        await runner.cleanup()


class _Site(web.BaseSite):
    """A listening socket of either kind; aiohttp's own class takes TCP sockets alone under uvloop."""

    def __init__(
        self, runner: web.AppRunner, listener: socket.socket, times: StreamTimes, tls: ssl.SSLContext | None
    ) -> None:
        super().__init__(runner)
        self._listener = listener
        self._times = times
        self._tls = tls

    @property
    def name(self) -> str:
        return f"socket:{self._listener.getsockname()}"

    async def start(self) -> None:
        await super().start()
        loop = asyncio.get_running_loop()
        create = loop.create_unix_server if self._listener.family == socket.AF_UNIX else loop.create_server
        self._server = await create(
            self._connect,
            sock=self._listener,
            ssl=self._tls,
            ssl_handshake_timeout=None if self._tls is None else _TLS_HANDSHAKE_TIMEOUT_S,
        )

    def _connect(self) -> HTTPProtocol:
        server = self._runner.server
        assert server is not None
        return HTTPProtocol(
            server,
            self._times,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=_KEEP_ALIVE_S,
            access_log=None,
            auto_decompress=False,  # see content_encoding
        )
