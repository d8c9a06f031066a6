"""The arguments of earlier calls, in the shape that a template can take: an object, or its JSON text.

Clients send text. Most templates write `arguments | tojson`, which would quote a text once more; some join the text to
others, which fails with an object, or print it as Python does. So each template is asked, once, by rendering a marked
call and looking for the mark.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from pagewire.ipc.errors import InvalidRequest

from .chat_content import MutableMessage, Renderer

_MARK = "pagewire-arguments-probe"
_QUESTION: MutableMessage = {"role": "user", "content": "question"}


class ArgumentShapes:
    """Which shape one template takes.

    Args:
        render: the template.
    """

    def __init__(self, render: Renderer) -> None:
        self._render = render
        self._shape: _Shape | None = None

    def fit(self, message: MutableMessage) -> MutableMessage:
        """Return `message` with its calls in a shape that the template prints, with their arguments as JSON.

        What is no JSON object stays as it is: a model may have written it, and is to see what it wrote. Some templates
        print the calls of a message alone that has no content at all, rather than an empty one.
        """
        calls = message.get("tool_calls")
        if not isinstance(calls, list):
            return message
        if self._shape is None:
            self._shape = next(filter(self._prints, _SHAPES), _SHAPES[0])
        write = _as_text if self._shape.writes_text else _as_object
        content = message["content"] or (None if self._shape.omits_content else message["content"])
        return {**message, "content": content, "tool_calls": [_with_arguments(call, write) for call in calls]}

    def _prints(self, shape: _Shape) -> bool:
        arguments = {"key": _MARK}
        function = {"name": "probe", "arguments": json.dumps(arguments) if shape.writes_text else arguments}
        call = {"id": "call00001", "type": "function", "function": function}
        content = None if shape.omits_content else ""
        messages = [_QUESTION, {"role": "assistant", "content": content, "tool_calls": [call]}]
        try:
            text = self._render(messages, {"add_generation_prompt": False, "tools": None, "documents": None})
        except InvalidRequest:
            return False
        return _MARK in text and f"'{_MARK}'" not in text and f'\\"{_MARK}' not in text


class _Shape(NamedTuple):
    writes_text: bool
    omits_content: bool


# In the order of preference: most templates take the first.
_SHAPES = (_Shape(False, False), _Shape(True, False), _Shape(False, True), _Shape(True, True))


def _with_arguments(call: Any, shape: Any) -> Any:  # Any: a call as the client sent it; one that is malformed stays so
    if not isinstance(call, dict) or not isinstance(function := call.get("function"), dict):
        return call
    return {**call, "function": {**function, "arguments": shape(function.get("arguments"))}}


def _as_object(arguments: Any) -> Any:  # Any: JSON values
    if arguments is None or arguments == "":
        return {}
    if not isinstance(arguments, str):
        return arguments
    try:
        parsed = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    return parsed if isinstance(parsed, dict) else arguments


def _as_text(arguments: Any) -> str:  # Any: JSON values
    if arguments is None or arguments == "":
        return "{}"
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
