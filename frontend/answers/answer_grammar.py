"""The grammar of an answer that has several parts: reasoning first, then calls that are forced, or what was asked for.

Written in Lark as llguidance reads it; its JSON schemas follow `%json`.
Source: https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from pagewire.ipc.errors import InvalidRequest
from pagewire.ipc.structured_outputs import StructuredOutputs, without_anchors

from .answer_formats import AnswerFormats, Thinking
from .reasoning import CLOSE_TAG, OPEN_TAG
from .tool_parsers.formats import ToolFormat
from .tools import Tool, ToolUse

MAX_CALLS = 16
"""Calls that an answer is made to have at most; a small model would go on for ever."""

# JSON on one line, with one space after a comma and a colon: nothing to write blanks into.
_JSON_OPTIONS = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
# Between slashes: what would end them, and the classes that are ASCII as in JSON schemas.
_SPELLED = {"/": r"\/", "\n": r"\n", r"\d": "[0-9]", r"\w": "[0-9a-zA-Z_]"}
_NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}


def forced_format(formats: AnswerFormats) -> ToolFormat:
    """Return the format that forced calls are written in: JSON, where the model's own is not or isn't known."""
    if formats.tools in (None, ToolFormat.PYTHONIC):
        return ToolFormat.LLAMA3_JSON
    return formats.tools


def answer_grammar(
    asked: StructuredOutputs | None, tools: ToolUse, formats: AnswerFormats, thinking: Thinking
) -> StructuredOutputs | None:
    """Return the grammar of an answer; None if it may be anything.

    Args:
        asked: the form that the request asks for.
        tools: what it says about tools.
        formats: how the model writes calls.
        thinking: whether reasoning comes first.

    Raises:
        InvalidRequest: a form and a call are forced, or a form can't follow reasoning.
    """
    if asked is not None and tools.is_forced:
        raise InvalidRequest(
            "tool_choice forces a call, and the request asks for a form of the answer as well; send one of them.",
            param="tool_choice",
        )
    lines = _Lines(formats.special_ids)
    may_call = tools.mode == "auto" and formats.tools in (ToolFormat.HERMES, ToolFormat.MISTRAL)
    if asked is None:
        if tools.is_forced:
            lines.add("body", lines.calls(tools, forced_format(formats)))
        elif may_call and any(tool.is_strict for tool in tools.tools):
            lines.add("body", lines.text_and_calls(tools, _known(formats.tools)))
        else:
            return None
        return StructuredOutputs(grammar=lines.text(thinking))
    if thinking is Thinking.NONE and not may_call:
        return asked
    answer = lines.answer(asked)
    if answer is None:
        if thinking is not Thinking.OPEN:
            return asked
        raise InvalidRequest(
            "A grammar or structural_tag can't follow this model's reasoning: turn that off, by "
            'chat_template_kwargs {"enable_thinking": false} or as its chat template has it.',
            param="structured_outputs",
        )
    if may_call:
        answer = f"{lines.calls(tools, _known(formats.tools))} | {answer}"
    lines.add("body", answer)
    return StructuredOutputs(grammar=lines.text(thinking))


def _known(tool_format: ToolFormat | None) -> ToolFormat:
    assert tool_format is not None
    return tool_format


class _Lines:
    """The rules of a grammar as they are put together."""

    def __init__(self, special_ids: Mapping[str, int]) -> None:
        self._special_ids = special_ids
        self._rules: list[str] = []

    def add(self, name: str, body: str) -> str:
        """Add a rule; return its name."""
        self._rules.append(f"{name}: {body}")
        return name

    def text(self, thinking: Thinking) -> str:
        """Return the grammar, whose rule `body` is there."""
        start = "body"
        if thinking is not Thinking.NONE:
            start = "think body" if thinking is Thinking.OPEN else f"({self._tag(OPEN_TAG)} think)? body"
            self._add_thinking()
        return "\n".join(["%llguidance {}", f"start: {start}", *self._rules, ""])

    def _add_thinking(self) -> None:
        if CLOSE_TAG in self._special_ids:
            self.add("think", f"/(?s:.*)/ {self._tag(CLOSE_TAG)} /[ \\n]{{0,4}}/")
        else:
            self.add("think", "thoughts /[ \\n]{0,4}/")
            self.add(f'thoughts[suffix="{CLOSE_TAG}"]', "/(?s:.*)/")

    def _tag(self, tag: str) -> str:
        token_id = self._special_ids.get(tag)
        return _quote(tag) if token_id is None else f"<[{token_id}]>"

    def answer(self, asked: StructuredOutputs) -> str | None:
        """Return what was asked for as the body of a rule; None if it can't be one."""
        if asked.json_object:
            return f"%json {_schema({'type': 'object'})}"
        if asked.json is not None:
            return f"%json {_schema(_read_schema(asked.json))}"
        if asked.regex is not None:
            return f"/(?:{_in_slashes(without_anchors(asked.regex))})/"
        if asked.choice is not None:
            return self.add("CHOICE", " | ".join(_quote(choice) for choice in asked.choice))  # a rule can't be so long
        return None

    def calls(self, tools: ToolUse, tool_format: ToolFormat) -> str:
        """Return the rule of one call or several, of any of the tools or of the one that is named."""
        call = self._any_call(tools, tool_format)
        match tool_format:
            case ToolFormat.HERMES:
                call = f"{self._tag('<tool_call>')} {call}"
                body = _repeated(call, _quote("\n"), tools)
            case ToolFormat.MISTRAL if self._names_stand_first:
                body = _repeated(f"{self._tag('[TOOL_CALLS]')} {call}", "", tools)
            case ToolFormat.MISTRAL:
                body = f"{self._tag('[TOOL_CALLS]')} {_listed(call, tools)}"
            case _:
                body = _repeated(call, _quote("; "), tools)
        return self.add("calls", body)

    def text_and_calls(self, tools: ToolUse, tool_format: ToolFormat) -> str:
        """Return the body of free text in which a tag is followed by a valid call."""
        behind = self._any_call(tools, tool_format)
        if tool_format is ToolFormat.MISTRAL and not self._names_stand_first:
            behind = _listed(behind, tools)
        tag = "<tool_call>" if tool_format is ToolFormat.HERMES else "[TOOL_CALLS]"
        self.add("TEXT", "/(?s:.*)/")
        head = self.add("head" if tag in self._special_ids else "head[lazy]", f"TEXT {self._tag(tag)}")
        return f"({head.removesuffix('[lazy]')} {behind}){'*' if tools.parallel else '?'} TEXT"

    @property
    def _names_stand_first(self) -> bool:
        """Whether Mistral's calls are `[TOOL_CALLS]name[ARGS]{...}`, as its newer vocabularies have it."""
        return "[ARGS]" in self._special_ids

    def _any_call(self, tools: ToolUse, tool_format: ToolFormat) -> str:
        chosen = [tool for tool in tools.tools if tools.named in (None, tool.name)]
        return self.add("call", " | ".join(self._call(tool, f"call_{n}", tool_format) for n, tool in enumerate(chosen)))

    def _call(self, tool: Tool, rule: str, tool_format: ToolFormat) -> str:
        """Return the rule of a tool's call, as it stands behind the tag."""
        arguments = self.add(f"{rule}_arguments", f"%json {_schema(_closed(tool.parameters))}")
        name = json.dumps(tool.name)
        match tool_format:
            case ToolFormat.HERMES:
                head = _quote('\n{"name": ' + name + ', "arguments": ')
                tail = _quote("}\n") + " " + self._tag("</tool_call>")
            case ToolFormat.MISTRAL if self._names_stand_first:
                head, tail = f"{_quote(tool.name)} {self._tag('[ARGS]')}", ""
            case ToolFormat.MISTRAL:
                head, tail = _quote('{"name": ' + name + ', "arguments": '), _quote("}")
            case _:
                head, tail = _quote('{"name": ' + name + ', "parameters": '), _quote("}")
        return self.add(rule, f"{head} {arguments} {tail}".rstrip())


def _repeated(call: str, between: str, tools: ToolUse) -> str:
    """Return one call, or several where that is allowed."""
    if tools.mode == "named" or not tools.parallel:
        return call
    return f"{call} ({between} {call}){{0,{MAX_CALLS - 1}}}"


def _listed(call: str, tools: ToolUse) -> str:
    """Return the same as a JSON list."""
    return f'"[" {_repeated(call, _quote(", "), tools)} "]"'


def _closed(parameters: dict[str, Any] | None) -> dict[str, Any]:  # Any: a JSON schema
    """Return the schema of arguments: those that are declared, and no others unless it says so."""
    if not parameters:
        return _NO_PARAMETERS
    if "properties" in parameters and "additionalProperties" not in parameters:
        return {**parameters, "additionalProperties": False}
    return parameters


def _schema(schema: Any) -> str:  # Any: a JSON schema
    if isinstance(schema, dict):
        schema = {**schema, "x-guidance": _JSON_OPTIONS}
    try:
        return json.dumps(schema, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as exc:
        raise InvalidRequest(f"a JSON schema of the request can't be written as JSON: {exc}") from exc


def _read_schema(schema: str | dict[str, Any] | bool) -> Any:  # Any: a JSON schema
    if not isinstance(schema, str):
        return schema
    try:
        return json.loads(schema)
    except (ValueError, RecursionError) as exc:
        raise InvalidRequest(f"structured_outputs.json is no JSON: {exc}.", param="structured_outputs.json") from exc


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _in_slashes(regex: str) -> str:
    """Return a regular expression for between slashes, which means there what it means by itself."""
    return re.sub(r"(?s)\\.|[/\n]", lambda match: _SPELLED.get(match[0], match[0]), regex)
