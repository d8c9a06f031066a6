"""The tools that a request offers and how it wants them used, whatever dialect it is written in."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

ToolMode = Literal["none", "auto", "required", "named"]


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """A function that the model may ask the client to call.

    Attributes:
        name: what it is called by.
        description: what it is for.
        parameters: JSON schema of its arguments, an object; None: it takes none.
        is_strict: its arguments must follow the schema even where the model calls of its own accord.
    """

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None  # Any: a JSON schema
    is_strict: bool = False

    def as_function(self) -> dict[str, Any]:  # Any: what chat templates print as JSON
        """Return the tool as chat templates expect it."""
        function: dict[str, Any] = {"name": self.name}
        if self.description is not None:
            function["description"] = self.description
        function["parameters"] = self.parameters or {"type": "object", "properties": {}}
        return {"type": "function", "function": function}


class ToolUse(msgspec.Struct, frozen=True, kw_only=True):
    """What a request says about tools.

    Attributes:
        tools: those offered.
        mode: none: no call; auto: the model's choice; required: one call at least; named: a call of `named`.
        named: the tool's name, in mode "named" alone.
        parallel: whether one answer may hold several calls.
    """

    tools: tuple[Tool, ...] = ()
    mode: ToolMode = "none"
    named: str | None = None
    parallel: bool = True

    @property
    def names(self) -> frozenset[str]:
        """The names of the tools offered."""
        return frozenset(tool.name for tool in self.tools)

    @property
    def is_forced(self) -> bool:
        """Whether an answer without a call would be wrong."""
        return self.mode in ("required", "named")
