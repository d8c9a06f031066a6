"""Tools and calls of tools, and what an answer must look like, as clients write them in requests."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

MAX_TOOLS = 1024
ToolName = Annotated[str, Meta(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9_.\-]+$")]


class _Body(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Shared struct options; not a place for fields."""


class FunctionBody(_Body, kw_only=True):
    """A function that is offered. Its parameters are a JSON schema of an object."""

    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = None  # Any: a JSON schema
    strict: bool | None = None  # keep to the schema in tool_choice auto, too


class ToolBody(_Body, kw_only=True):
    """A tool that is offered."""

    type: str = "function"
    function: FunctionBody | None = None


class FunctionName(_Body, kw_only=True):
    """A function by its name."""

    name: str


class ToolReference(_Body, kw_only=True):
    """A tool by its name."""

    type: str = "function"
    function: FunctionName


class AllowedTools(_Body, kw_only=True):
    """Some of the tools that are offered."""

    mode: str
    tools: list[ToolReference]


class ToolChoiceBody(_Body, kw_only=True):
    """A tool that must be called, or the tools that may be."""

    type: str = "function"
    function: FunctionName | None = None
    allowed_tools: AllowedTools | None = None


class CalledFunction(_Body, kw_only=True):
    """What was called; arguments are JSON text, or the object itself."""

    name: str
    arguments: str | dict[str, Any] | None = None  # Any: JSON values
    parsed_arguments: Any = None  # what an SDK made of the arguments, and writes back beside them


class ToolCallBody(_Body, kw_only=True):
    """A call that an earlier answer asked for."""

    id: str | None = None
    type: str | None = None
    index: int | None = None  # of a stream's deltas, which some clients keep
    function: CalledFunction


class JsonSchemaFormat(_Body, kw_only=True):
    """A schema with its name."""

    name: str | None = None
    description: str | None = None
    schema: dict[str, Any] | bool | None = None  # Any: a JSON schema
    strict: bool | None = None  # the schema is always kept to


class ResponseFormat(_Body, kw_only=True):
    """What an answer must look like: text, json_object, json_schema or structural_tag."""

    type: str
    json_schema: JsonSchemaFormat | None = None
    schema: dict[str, Any] | None = None  # Any: a JSON schema; of json_object, as some servers take it
    structures: list[dict[str, Any]] | None = None  # Any: of structural_tag
    triggers: list[str] | None = None
    format: dict[str, Any] | None = None  # Any: likewise
