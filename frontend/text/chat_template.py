"""Chat messages -> prompt text, by the model's own Jinja template.

Templates come with models and are untrusted code: they run in Jinja's immutable sandbox, and whatever goes wrong inside
one is the request's fault (400), with the template's own words. Helpers behave as in `transformers`, for which
templates are written.

Source: transformers' chat templating (https://huggingface.co/docs/transformers/chat_templating).
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from pagewire.ipc.errors import InvalidRequest

from .call_arguments import ArgumentShapes
from .chat_content import ContentFormat, ContentShapes, normalize_message

# Any: templates see messages, tools and documents as the plain JSON values that they are.
Message = Mapping[str, Any]

# Marks the end of the text to continue; the space shows whether the template trims what it is given.
_CONTINUE_MARK = "<|pagewire-continue-here|> "
# What is raised inside a template: undefined names, wrong types, missing keys, numbers out of range, deep recursion (a
# RuntimeError, as is a loop over what it changes).
_TEMPLATE_FAULTS = (
    jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RuntimeError,
)  # fmt: skip
_NO_TEMPLATE = (
    "this model has no chat template, so messages can't become a prompt: start the server with --chat-template FILE, "
    "or send the text itself to /v1/completions"
)


class ChatTemplate:
    """One model's chat template, compiled once.

    Args:
        source: the Jinja text; None for a model without one, which refuses every chat.
        special_tokens: role -> token ("bos_token", "eos_token", ...), variables of the template.
        now: local time for templates that state the date.
        is_optimized: compute the template's constants while it is compiled; False for one that is used once or twice,
            and may have been written to make that long.
        content_format: the shape of contents, if it is not found by asking the template.

    Raises:
        InvalidRequest: if `source` is no valid template. A model with such a template can still complete plain text.
    """

    def __init__(
        self,
        source: str | None,
        *,
        special_tokens: Mapping[str, str] | None = None,
        now: Callable[[], dt.datetime] = dt.datetime.now,
        is_optimized: bool = True,
        content_format: ContentFormat = "auto",
    ) -> None:
        self._special_tokens = dict(special_tokens or {})
        self._template = None if source is None else _compile(source, now, is_optimized=is_optimized)
        self._shapes = ContentShapes(self._render_plain, content_format)
        self._arguments = ArgumentShapes(self._render_plain)

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        template_arguments: Mapping[str, Any] | None = None,
    ) -> str:
        """Return the prompt. It holds the begin-of-text token where the template prints one: add none on encoding.

        Args:
            messages: OpenAI-shaped messages; `content` is a string, a list of text parts, or absent.
            add_generation_prompt: end where the assistant's answer begins.
            continue_final_message: end within the last message, for the model to go on with it.
            tools: JSON schemas of functions, for templates that know tools.
            documents: for templates that know retrieval.
            template_arguments: further variables of the template (`chat_template_kwargs`). A mapping, not keywords: the
                names are the client's, and the arguments above come before one of the same name.

        Raises:
            InvalidRequest: if there is no template, if a content part is not text, or if the template refuses or fails.
        """
        if continue_final_message and add_generation_prompt:
            raise InvalidRequest(
                "continue_final_message goes on with the last message and add_generation_prompt begins a new one: "
                "set only one of them",
                param="continue_final_message",
            )
        shaped = [
            self._arguments.fit(self._shapes.fit(normalize_message(message, index)))
            for index, message in enumerate(messages)
        ]
        if continue_final_message:
            shaped = [*shaped[:-1], _mark_end(shaped)]
        variables = {
            **(template_arguments or {}),
            "add_generation_prompt": add_generation_prompt,
            "tools": None if tools is None else list(tools),
            "documents": None if documents is None else list(documents),
        }
        text = self._render_plain(shaped, variables)
        return _cut_at_mark(text) if continue_final_message else text

    def _render_plain(self, messages: list[dict[str, Any]], variables: Mapping[str, Any]) -> str:
        if self._template is None:
            raise InvalidRequest(_NO_TEMPLATE, param="messages")
        try:
            return self._template.render({**self._special_tokens, **variables, "messages": messages})
        except _TEMPLATE_FAULTS as error:
            reason = str(error) or type(error).__name__
            raise InvalidRequest(
                f"the model's chat template refuses these messages: {reason}", param="messages"
            ) from error


def _mark_end(messages: list[dict[str, Any]]) -> dict[str, Any]:
    if not messages:
        raise InvalidRequest("continue_final_message needs a message to continue; messages is empty", param="messages")
    last = messages[-1]
    content = last["content"]
    if isinstance(content, list):
        *parts, final = content
        return {**last, "content": [*parts, {**final, "text": final["text"] + _CONTINUE_MARK}]}
    return {**last, "content": content + _CONTINUE_MARK}


def _cut_at_mark(text: str) -> str:
    at = text.rfind(_CONTINUE_MARK.strip())
    if at < 0:
        raise InvalidRequest(
            "the model's chat template drops the last message, so it can't be continued", param="continue_final_message"
        )
    return text[:at] if text.startswith(_CONTINUE_MARK, at) else text[:at].rstrip()


def _compile(source: str, now: Callable[[], dt.datetime], *, is_optimized: bool) -> jinja2.Template:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        optimized=is_optimized,
        extensions=[_GenerationBlocks, jinja2.ext.loopcontrols],
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda date_format: now().strftime(date_format)
    try:
        return environment.from_string(source)
    except jinja2.TemplateSyntaxError as error:
        raise InvalidRequest(
            f"the chat template is no valid Jinja: {error.message} (line {error.lineno})", param="chat_template"
        ) from error
    # Jinja writes Python, which has limits of its own: twenty loops one in another, for one.
    except (SyntaxError, *_TEMPLATE_FAULTS) as error:
        raise InvalidRequest(
            f"the chat template can't be compiled: {error or type(error).__name__}", param="chat_template"
        ) from error


class _GenerationBlocks(jinja2.ext.Extension):
    """`{% generation %}...{% endgeneration %}` marks the assistant's text for training; here it is just text."""

    tags = {"generation"}

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes HTML and sorts keys; models were trained on neither.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)
