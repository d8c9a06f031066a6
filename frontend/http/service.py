"""One served model over HTTP: what `launch` puts together once the engine is ready."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from pagewire.ipc.config import ServerConfig
from pagewire.ipc.errors import Overloaded

from ..client.engine_client import AsyncEngineClient
from ..openai.serving import Serving
from ..text.generation import TextGenerator
from ..text.text_side import TextSide
from . import server
from .metrics import Metrics
from .stats_log import StatsLog

# A handler whose generation was just ended needs a moment to tell its client so.
HANDLER_END_TIMEOUT_S = 2.0


class HTTPService:
    """The HTTP side of one engine.

    Args:
        client: attached to the engine.
        text: the model's text side.
        config: keys and what to log.
    """

    def __init__(self, client: AsyncEngineClient, text: TextSide, config: ServerConfig) -> None:
        self._client = client
        self._config = config
        self._metrics = Metrics(client.info.served_model_names[0], client.info)
        client.add_stats_listener(self._metrics.step_done)
        self._app = server.create_app(
            Serving(
                info=client.info,
                generator=TextGenerator(client, text.tokenizer),
                tokenizer=text.tokenizer,
                chat_template=text.chat_template,
                defaults=text.defaults,
                metrics=self._metrics,
                death=lambda: client.death,
                log_requests=config.enable_log_requests,
            ),
            config,
        )

    @asynccontextmanager
    async def serving(self, listeners: Sequence[socket.socket]) -> AsyncIterator[None]:
        """Answer requests while the context is open; on leaving, end what runs and tell its clients."""
        async with contextlib.AsyncExitStack() as stack:
            if not self._config.disable_log_stats:
                log = StatsLog(self._metrics.totals, self._client.info.device, time.monotonic)
                task = asyncio.create_task(log.run())
                stack.callback(task.cancel)
            await stack.enter_async_context(
                server.serve(self._app, listeners, shutdown_timeout_s=HANDLER_END_TIMEOUT_S)
            )
            try:
                yield
            finally:  # a signal comes as an exception
                self._client.mark_dead(
                    Overloaded("The server is shutting down; send the request to another one, or again later.")
                )
