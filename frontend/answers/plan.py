"""How the answers to one request are forced into shape and read."""

from __future__ import annotations

from dataclasses import dataclass

from pagewire.ipc.errors import InvalidRequest
from pagewire.ipc.structured_outputs import StructuredOutputs

from .answer_formats import AnswerFormats, Thinking, splitter
from .answer_grammar import answer_grammar, forced_format
from .reader import AnswerReader, PartReader, TextReader
from .tool_parsers.formats import ToolFormat, make_parser
from .tools import ToolUse


@dataclass(frozen=True, kw_only=True)
class AnswerPlan:
    """Made by `plan_answer`.

    Attributes:
        tools: what the request says about tools.
        tool_format: how calls are written; None if there are none to read.
        thinking: whether answers begin with reasoning.
        shows_reasoning: whether the client gets it.
        grammar: what answers must look like; None: anything.
        keeps_special_tokens: control tokens have to stay in the text, as some of them are tags.
    """

    tools: ToolUse
    tool_format: ToolFormat | None
    thinking: Thinking
    shows_reasoning: bool
    grammar: StructuredOutputs | None
    keeps_special_tokens: bool

    @property
    def is_plain(self) -> bool:
        """Whether answers are text and nothing else, which needs no reading."""
        return self.tool_format is None and self.thinking is Thinking.NONE

    def make_reader(self) -> AnswerReader:
        """Return a reader for one answer."""
        rest: PartReader = TextReader()
        if self.tool_format is not None:
            rest = make_parser(self.tool_format, self.tools.names, is_parallel=self.tools.parallel)
        return AnswerReader(splitter(self.thinking, shows=self.shows_reasoning), rest)


def plan_answer(
    formats: AnswerFormats,
    tools: ToolUse,
    asked: StructuredOutputs | None,
    prompt: str,
    *,
    begins_answer: bool = True,
    shows_reasoning: bool = True,
) -> AnswerPlan:
    """Return how the answers to a prompt are forced and read.

    Args:
        formats: how the model writes.
        tools: what the request says about tools.
        asked: the form that the request asks for.
        prompt: the rendered chat: it may have opened a think block.
        begins_answer: the prompt ends where an answer begins; False if the answer goes on with the last message.
        shows_reasoning: whether the client wants to see the reasoning.

    Raises:
        InvalidRequest: calls can't be read, or two forms are asked for.
    """
    thinking = formats.thinking(prompt, begins_answer=begins_answer)
    tool_format: ToolFormat | None = None
    if tools.is_forced:
        tool_format = forced_format(formats)
    elif tools.mode == "auto":
        tool_format = formats.tools
        if tool_format is None:
            raise InvalidRequest(
                "tools that the model may call when it likes need a known format of calls, and its chat template shows "
                f"none: start the server with --tool-call-parser ({', '.join(each.value for each in ToolFormat)}), or "
                "force a call by tool_choice: required or a function by its name.",
                param="tools",
            )
    return AnswerPlan(
        tools=tools,
        tool_format=tool_format,
        thinking=thinking,
        shows_reasoning=shows_reasoning,
        grammar=answer_grammar(asked, tools, formats, thinking),
        keeps_special_tokens=formats.is_special(tool_format, thinking),
    )
