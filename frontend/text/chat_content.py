"""The `content` of a chat message, in the shape that a template can take: one string, or a list of parts.

Clients send either. Some templates know only strings (and would print a list as Python spells it), some only lists,
some both, and some both for one role but not for another. So each template is asked, once for each role and shape, by
rendering a marked message and looking for the mark.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from pagewire.ipc.errors import InvalidRequest

# Any: a message as the plain JSON object that it is.
MutableMessage = dict[str, Any]

_MARK = "pagewire-content-probe"
_QUESTION: MutableMessage = {"role": "user", "content": "question"}
_CALL = {"id": "call00001", "type": "function", "function": {"name": "probe", "arguments": {}}}


ContentFormat = Literal["auto", "string", "openai"]
"""What a template is given: what it takes, always one string, or always a list of parts."""

Renderer = Callable[[list[MutableMessage], Mapping[str, Any]], str]
"""Renders messages as they are with further variables, or raises `InvalidRequest`."""


class ContentShapes:
    """Which shapes one template takes, by role.

    Args:
        render: the template.
        content_format: "auto" asks the template; else all contents have that shape.
    """

    def __init__(self, render: Renderer, content_format: ContentFormat = "auto") -> None:
        self._render = render
        self._format = content_format
        self._takes: dict[tuple[str, str], bool] = {}

    def fit(self, message: MutableMessage) -> MutableMessage:
        """Return `message` with its content in a shape that the template prints as text.

        A list stays a list if the template takes one (it may join parts in its own way); a string stays a string unless
        the template takes lists alone. What a developer says is said by the system where a template doesn't know the
        role, which newer clients use for the other.
        """
        if message["role"] == "developer" and not self._knows("developer"):
            message = {**message, "role": "system"}
        role, content = message["role"], message["content"]
        if isinstance(content, list):
            return message if self._takes_shape(role, "list") else {**message, "content": flatten_parts(content)}
        if self._takes_shape(role, "string") or not self._takes_shape(role, "list"):
            return message
        return {**message, "content": _as_parts(content)}

    def _knows(self, role: str) -> bool:
        return self._takes_shape(role, "string") or self._takes_shape(role, "list")

    def _takes_shape(self, role: str, shape: str) -> bool:
        if self._format != "auto":
            return shape == ("list" if self._format == "openai" else "string")
        key = (role, shape)
        if key not in self._takes:
            self._takes[key] = self._probe(role, _MARK if shape == "string" else _as_parts(_MARK))
        return self._takes[key]

    def _probe(self, role: str, content: str | list[dict[str, str]]) -> bool:
        probe: MutableMessage = {"role": role, "content": content}
        match role:
            case "system" | "developer":
                messages = [probe, _QUESTION]
            case "assistant":
                messages = [_QUESTION, probe]
            case "tool":
                call = {"role": "assistant", "content": "", "tool_calls": [_CALL]}
                messages = [_QUESTION, call, {**probe, "tool_call_id": _CALL["id"], "name": "probe"}]
            case _:
                messages = [probe]
        try:
            text = self._render(messages, {"add_generation_prompt": False, "tools": None, "documents": None})
        except InvalidRequest:
            return False
        # A template that prints the list itself shows the mark too, in Python's or JSON's quotes.
        return _MARK in text and f"'{_MARK}'" not in text and f'"{_MARK}"' not in text


def normalize_message(message: Mapping[str, Any], index: int) -> MutableMessage:
    """Return a copy of a client's message as templates expect it: no nulls, `content` always there, text parts alone.

    Args:
        message: as the client sent it; it is not changed.
        index: its place in the conversation, for error messages.

    Raises:
        InvalidRequest: if the role is no string, or the content is neither text nor a list of text parts.
    """
    normalized = {key: value for key, value in message.items() if value is not None}
    where = f"messages[{index}]"
    if not isinstance(normalized.get("role"), str):
        raise InvalidRequest(f"{where}.role must be a string, not {message.get('role')!r}", param=f"{where}.role")
    # Templates test whether there are calls; an empty list means that there are none.
    if normalized.get("tool_calls") == []:
        del normalized["tool_calls"]
    content = normalized.get("content", "")
    if isinstance(content, list):
        content = [_checked_part(part, f"{where}.content[{number}]") for number, part in enumerate(content)] or ""
    elif not isinstance(content, str):
        raise InvalidRequest(
            f"{where}.content must be a string or a list of parts, not {type(content).__name__}",
            param=f"{where}.content",
        )
    normalized["content"] = content
    return normalized


def flatten_parts(parts: list[dict[str, str]]) -> str:
    """Return text parts as one string, a line break between them."""
    return "\n".join(part["text"] for part in parts)


def _as_parts(text: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text}]


def _checked_part(part: object, where: str) -> dict[str, str]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if not isinstance(part, Mapping):
        raise InvalidRequest(f"{where} must be an object, not {type(part).__name__}", param=where)
    kind = part.get("type", "text")
    if kind not in ("text", "input_text", "output_text"):
        raise InvalidRequest(
            f"{where} is of type {kind!r}; this model takes text only: send parts of type 'text'", param=where
        )
    text = part.get("text")
    if not isinstance(text, str):
        raise InvalidRequest(f"{where}.text must be a string, not {text!r}", param=f"{where}.text")
    return {"type": "text", "text": text}
