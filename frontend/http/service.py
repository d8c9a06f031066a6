"""One served model over HTTP: what `launch` puts together once the engine is ready."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from pagewire.ipc.server_config import ServerConfig

from ..answers.answer_formats import find_formats
from ..client.engine_client import AsyncEngineClient
from ..exchange.siblings import Siblings
from ..openai.serving import Serving
from ..templates.renderer import ChatRenderer
from ..text.generation import TextGenerator
from ..text.text_side import TextSide
from ..tracing.tracing import open_tracing
from . import server
from .access.tls import load_tls
from .metrics import Metrics
from .sse import NEVER_S, StreamTimes
from .stats_log import StatsLog
from .together import TOGETHER

# A handler whose generation was just ended needs a moment to tell its client so.
HANDLER_END_TIMEOUT_S = 2.0


class HTTPService:
    """The HTTP side of one engine.

    Args:
        client: attached to the engine.
        text: the model's text side.
        chats: makes prompts of chats.
        config: keys, certificates, limits and what to log.
        siblings: the other frontends of this server, if there are any.

    Raises:
        ConfigError: a file of keys or certificates can't be used.
    """

    def __init__(
        self,
        client: AsyncEngineClient,
        text: TextSide,
        chats: ChatRenderer,
        config: ServerConfig,
        siblings: Siblings | None = None,
    ) -> None:
        self._siblings = siblings
        self._client = client
        self._config = config
        self._tls = load_tls(config)
        self._metrics = Metrics(
            client.info.served_model_names[0],
            client.info,
            num_core_restarts=lambda: client.num_core_restarts,
            adapters=lambda: client.adapters,
        )
        client.add_core_listener(self._metrics.step_done)
        self._tracing = None if config.otlp_traces_endpoint is None else open_tracing(config.otlp_traces_endpoint)
        self._serving = Serving(
            info=client.info,
            generator=TextGenerator(client, text.tokenizer),
            tokenizer=text.tokenizer,
            chats=chats,
            defaults=text.defaults,
            metrics=self._metrics,
            request_timeout_s=config.request_timeout,
            forces_usage=config.enable_force_include_usage,
            names_ids=config.return_tokens_as_token_ids,
            log_requests=config.enable_log_requests,
            formats=find_formats(
                text.template.text,
                text.tokenizer,
                tool_parser=config.tool_call_parser,
                reasoning_parser=config.reasoning_parser,
            ),
            tracing=self._tracing,
            response_role=config.response_role,
            times=StreamTimes(keep_alive_s=config.sse_keep_alive_interval or NEVER_S),
        )
        self._app = server.create_app(self._serving, config, siblings)

    @asynccontextmanager
    async def serving(self, listeners: Sequence[socket.socket]) -> AsyncIterator[None]:
        """Answer requests while the context is open; on leaving, end what runs and tell its clients."""
        async with contextlib.AsyncExitStack() as stack:
            # The figures are those of the whole engine: of several frontends, one says them.
            if not self._config.disable_log_stats and (self._siblings is None or self._siblings.index == 0):
                log = StatsLog(self._metrics.totals, self._client.info.device, time.monotonic)
                task = asyncio.create_task(log.run(refresh=self._app[TOGETHER].figures))
                stack.callback(task.cancel)
            if self._tracing is not None:
                stack.push_async_callback(self._tracing.aclose)
            if self._siblings is not None:
                await self._siblings.attach(functools.partial(server.answer_siblings, self._app))
                stack.push_async_callback(self._siblings.aclose)
            await stack.enter_async_context(
                server.serve(
                    self._app,
                    listeners,
                    shutdown_timeout_s=HANDLER_END_TIMEOUT_S,
                    tls=self._tls,
                    root_path=self._config.root_path,
                )
            )
            try:
                yield
            finally:  # a signal comes as an exception
                self._serving.admission.close()
                self._client.mark_dead(self._serving.admission.refusal())

    async def drain(self, timeout_s: float) -> None:
        """Take no new requests, and return once all that were accepted are answered or `timeout_s` is over.

        New ones get a 503 with Retry-After, and so does /health, on the listeners that stay open until `serving` is
        left. It may be cancelled; requests are refused from its call on.
        """
        admission = self._serving.admission
        admission.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await admission.wait_idle()
