"""One served model over HTTP: what `launch` puts together once the engine is ready."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from pagewire.checkpoint.generation_config import GenerationDefaults, load_generation_defaults
from pagewire.ipc.config import EngineConfig, ServerConfig
from pagewire.ipc.errors import ConfigError, EngineDead, InvalidRequest

from . import server
from .chat_template import ChatTemplate
from .engine_client import AsyncEngineClient
from .metrics import Metrics
from .openai.serving import Serving
from .stats_log import StatsLog
from .text_generation import TextGenerator
from .tokenizer import Tokenizer, load_tokenizer

logger = logging.getLogger(__name__)

# A handler whose generation was just ended needs a moment to tell its client so.
HANDLER_END_TIMEOUT_S = 2.0


@dataclass(frozen=True, kw_only=True)
class TextSide:
    """What turns requests into ids and ids into text, read from the model's files."""

    tokenizer: Tokenizer
    chat_template: ChatTemplate
    defaults: GenerationDefaults


def load_text_side(model_path: Path, engine_config: EngineConfig, server_config: ServerConfig) -> TextSide:
    """Load the tokenizer, the chat template and the sampling defaults.

    Raises:
        ConfigError: a file is missing or can't be read, or the chat template is no template.
    """
    tokenizer = load_tokenizer(model_path)
    uses_model_defaults = engine_config.model.generation_config == "auto"
    return TextSide(
        tokenizer=tokenizer,
        chat_template=_chat_template(tokenizer, server_config.chat_template),
        defaults=load_generation_defaults(model_path) if uses_model_defaults else GenerationDefaults(),
    )


def _chat_template(tokenizer: Tokenizer, override: str | None) -> ChatTemplate:
    if override is None:
        try:
            return ChatTemplate(tokenizer.chat_template, special_tokens=tokenizer.special_tokens)
        except InvalidRequest as exc:
            logger.warning("the model's chat template is unusable, chats are refused: %s", exc)
            return ChatTemplate(None)
    source = override
    if "{" not in override:  # not a template itself
        try:
            source = Path(override).read_text(encoding="utf-8")
        except OSError as exc:
            raise ConfigError(f"--chat-template {override} can't be read: {exc.strerror}.") from exc
    try:
        return ChatTemplate(source, special_tokens=tokenizer.special_tokens)
    except InvalidRequest as exc:
        raise ConfigError(f"--chat-template {override}: {exc.message}") from exc


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
            yield
            self._client.mark_dead(EngineDead("The server is shutting down."))
