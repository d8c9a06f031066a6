"""`functions` and `function_call`, which OpenAI's clients had before tools: read as tools, and answered in kind."""

from __future__ import annotations

import msgspec

from pagewire.ipc.errors import InvalidRequest

from .bodies.responses import AnswerMessage, ChatDelta
from .bodies.schema import ChatRequest
from .bodies.tool_bodies import FunctionName, ToolBody, ToolChoiceBody

FINISH_REASON = "function_call"


def functions_as_tools(request: ChatRequest) -> ChatRequest:
    """Return the request with its functions as tools, of which an answer may call one; as it is, if it has none.

    Raises:
        InvalidRequest: it has tools as well, or what is to be called is no function of it.
    """
    choice = request.function_call
    if not request.functions:
        if choice not in (None, "none"):
            raise InvalidRequest("function_call needs functions to choose among.", param="function_call")
        return msgspec.structs.replace(request, functions=None, function_call=None)
    for name in ("tools", "tool_choice"):
        if getattr(request, name):
            raise InvalidRequest(f"{name} does not go with functions, its older form; send one of them.", param=name)
    if isinstance(choice, str) and choice not in ("none", "auto"):
        raise InvalidRequest(
            f'function_call must be none, auto or a function by its name ({{"name": ...}}); got {choice[:100]!r}.',
            param="function_call",
        )
    names = [function.name for function in request.functions]
    if isinstance(choice, FunctionName) and choice.name not in names:
        raise InvalidRequest(
            f"function_call names {choice.name[:200]!r}, which is none of the functions: {', '.join(names)[:500]}.",
            param="function_call.name",
        )
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InvalidRequest(f"There are two functions of the name {twice!r}.", param="functions")
    return msgspec.structs.replace(
        request,
        functions=None,
        function_call=None,
        tools=[ToolBody(function=function) for function in request.functions],
        tool_choice=ToolChoiceBody(function=choice) if isinstance(choice, FunctionName) else choice,
        parallel_tool_calls=False,
    )


def message_in_kind(message: AnswerMessage) -> AnswerMessage:
    """Return an answer's message with its call as `function_call`."""
    if not message.tool_calls:
        return message
    return msgspec.structs.replace(message, tool_calls=msgspec.UNSET, function_call=message.tool_calls[0].function)


def delta_in_kind(delta: ChatDelta) -> ChatDelta:
    """Return a delta with its share of the call as `function_call`."""
    if not delta.tool_calls:
        return delta
    return msgspec.structs.replace(delta, tool_calls=msgspec.UNSET, function_call=delta.tool_calls[0].function)
