"""The fields about tools of a chat request -> `ToolUse`."""

from __future__ import annotations

from typing import Literal

from pagewire.ipc.errors import InvalidRequest

from ..answers.tools import Tool, ToolUse
from .bodies.schema import ChatRequest, TokenizeRequest
from .bodies.tool_bodies import AllowedTools, ToolBody, ToolChoiceBody

_NO_TOOLS = ToolUse()


def read_tools(bodies: list[ToolBody] | None) -> tuple[Tool, ...]:
    """Return the tools that a request offers.

    Raises:
        InvalidRequest: one is no function, or two have the same name.
    """
    tools: dict[str, Tool] = {}
    for index, body in enumerate(bodies or ()):
        where = f"tools[{index}]"
        if body.type != "function" or body.function is None:
            raise InvalidRequest(
                f"{where} must be of type 'function' and have a function; got type {body.type!r}.",
                param=f"{where}.type",
            )
        function = body.function
        if function.name in tools:
            raise InvalidRequest(f"{where}: there are two tools of the name {function.name!r}.", param=where)
        tools[function.name] = Tool(
            name=function.name,
            description=function.description,
            parameters=function.parameters,
            is_strict=bool(function.strict),
        )
    return tuple(tools.values())


def read_tool_use(request: ChatRequest) -> ToolUse:
    """Return what a request says about tools. Those that may not be called are not offered to the model at all.

    Raises:
        InvalidRequest: the fields contradict each other.
    """
    tools = read_tools(request.tools)
    choice = request.tool_choice
    if not tools:
        if choice not in (None, "none", "auto"):
            raise InvalidRequest("tool_choice needs tools to choose among.", param="tool_choice")
        return _NO_TOOLS
    parallel = request.parallel_tool_calls is not False
    match choice:
        case None | "auto":
            return ToolUse(tools=tools, mode="auto", parallel=parallel)
        case "none":
            return _NO_TOOLS
        case "required":
            return ToolUse(tools=tools, mode="required", parallel=parallel)
        case ToolChoiceBody(type="function", function=function) if function is not None:
            _check_offered(function.name, tools, "tool_choice.function.name")
            return ToolUse(tools=tools, mode="named", named=function.name, parallel=parallel)
        case ToolChoiceBody(type="allowed_tools", allowed_tools=allowed) if allowed is not None:
            return ToolUse(tools=_allowed(allowed, tools), mode=_mode(allowed), parallel=parallel)
        case _:
            raise _no_choice()


def offered_tools(request: ChatRequest | TokenizeRequest) -> tuple[Tool, ...]:
    """Return the tools that the prompt of a request tells the model about; errors as `read_tool_use`."""
    return read_tool_use(request).tools if isinstance(request, ChatRequest) else read_tools(request.tools)


def _allowed(allowed: AllowedTools, tools: tuple[Tool, ...]) -> tuple[Tool, ...]:
    names = [reference.function.name for reference in allowed.tools]
    for name in names:
        _check_offered(name, tools, "tool_choice.allowed_tools")
    if not names:
        raise _no_choice()
    return tuple(tool for tool in tools if tool.name in names)


def _mode(allowed: AllowedTools) -> Literal["auto", "required"]:
    match allowed.mode:
        case "auto":
            return "auto"
        case "required":
            return "required"
        case _:
            raise _no_choice()


def _check_offered(name: str, tools: tuple[Tool, ...], param: str) -> None:
    if all(tool.name != name for tool in tools):
        raise InvalidRequest(
            f"tool_choice names {name[:200]!r}, which is none of the tools: "
            f"{', '.join(tool.name for tool in tools)[:500]}.",
            param=param,
        )


def _no_choice() -> InvalidRequest:
    return InvalidRequest(
        "tool_choice must be none, auto, required, a function by its name "
        '({"type": "function", "function": {"name": ...}}) or allowed_tools with the mode auto or required.',
        param="tool_choice",
    )
