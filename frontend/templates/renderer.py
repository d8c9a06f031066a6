"""Where handlers have chats rendered: the model's template in one process, those that requests bring in another.

Two processes, because a client's own template may take its second of every request, and must not hold up the others.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Protocol

import msgspec

from pagewire.ipc.errors import InvalidRequest

from ..text.template_source import TemplateSource
from .helper import TemplateHelper
from .jobs import LoadTemplate, RenderChat


class ChatRenderer(Protocol):
    """Makes prompts of chats."""

    async def render(self, chat: RenderChat) -> str:
        """Return the prompt.

        Raises:
            InvalidRequest: the template refuses the messages, fails on them or takes more than it may, or the request
                brings one and may not.
            PagewireError: the server's own fault.
        """


class SplitRenderer:
    """Renders with the model's template, or with the request's own where that is allowed.

    Args:
        model_template: renders with the model's.
        request_templates: renders with those of requests; None if they may not bring any.
        default_arguments: variables of the template; those of a request come before them.
    """

    def __init__(
        self,
        model_template: ChatRenderer,
        request_templates: ChatRenderer | None,
        default_arguments: Mapping[str, Any] | None = None,
    ) -> None:
        self._model_template = model_template
        self._request_templates = request_templates
        self._defaults = dict(default_arguments or {})

    async def render(self, chat: RenderChat) -> str:
        """See `ChatRenderer`."""
        if self._defaults:
            arguments = {**self._defaults, **(chat.template_arguments or {})}
            chat = msgspec.structs.replace(chat, template_arguments=arguments)
        if chat.source is None:
            return await self._model_template.render(chat)
        if self._request_templates is None:
            raise InvalidRequest(
                "chat_template is refused: this server renders with the model's own chat template alone, unless it is "
                "started with --trust-request-chat-template.",
                param="chat_template",
            )
        return await self._request_templates.render(chat)


@asynccontextmanager
async def chat_renderer(
    template: TemplateSource,
    *,
    trusts_requests: bool,
    log_level: str,
    default_arguments: Mapping[str, Any] | None = None,
) -> AsyncIterator[SplitRenderer]:
    """Run the processes while the context is open.

    Args:
        template: the model's, or the one given instead.
        trusts_requests: whether requests may bring templates.
        log_level: of the processes.
        default_arguments: variables of templates where requests bring none.

    Raises:
        ConfigError: the given template is none.
        PagewireError: the process can't be started.
    """
    async with contextlib.AsyncExitStack() as stack:

        def start(name: str, source: str | None) -> TemplateHelper:
            load = LoadTemplate(
                source=source,
                special_tokens=dict(template.special_tokens),
                content_format=template.content_format,
            )
            helper = TemplateHelper(load, name=name, log_level=log_level)
            stack.push_async_callback(helper.aclose)
            return helper

        try:
            model_template = start("chat template", template.text)
            await model_template.loaded()
        except InvalidRequest as exc:
            template.reject(exc)
            await stack.aclose()
            model_template = start("chat template", None)
        request_templates = start("request templates", None) if trusts_requests else None
        yield SplitRenderer(model_template, request_templates, default_arguments)
