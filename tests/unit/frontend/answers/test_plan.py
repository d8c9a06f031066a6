"""How answers are forced and read, put together."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagewire.frontend.answers.answer_formats import AnswerFormats, ReasoningFormat
from pagewire.frontend.answers.collector import merge_parts
from pagewire.frontend.answers.parts import AnswerPart, ReasoningPart, TextPart, ToolCallPart
from pagewire.frontend.answers.plan import AnswerPlan, plan_answer
from pagewire.frontend.answers.tool_parsers.formats import ToolFormat
from pagewire.frontend.answers.tools import Tool, ToolUse
from pagewire.ipc.errors import InvalidRequest

TOOLS = (Tool(name="f"), Tool(name="g"))
AUTO = ToolUse(tools=TOOLS, mode="auto")
FORMATS = AnswerFormats(tools=ToolFormat.HERMES, reasoning=ReasoningFormat.QWEN3)
CALL = '<tool_call>{"name": "f", "arguments": {"a": "</think>"}}</tool_call>'
TEXT = f"<think>\nMaybe {CALL}?\n</think>\n\nLet me see.\n{CALL}{CALL}"


def read(plan: AnswerPlan, pieces: list[str]) -> list[AnswerPart]:
    """The parts of an answer, its ids replaced by numbers."""
    reader = plan.make_reader()
    parts = [part for piece in pieces for part in reader.push(piece)]
    parts = merge_parts([*parts, *reader.finish()])
    return [
        ToolCallPart(index=part.index, id=str(part.index), name=part.name, arguments=part.arguments)
        if isinstance(part, ToolCallPart)
        else part
        for part in parts
    ]


@settings(derandomize=True, deadline=None)
@given(cuts=st.sets(st.integers(0, len(TEXT))))
def test_calls_follow_the_reasoning_and_none_is_read_in_it(cuts):
    ends = [*sorted(cuts), len(TEXT)]
    pieces = [TEXT[start:end] for start, end in itertools.pairwise([0, *ends])]
    arguments = '{"a": "</think>"}'
    # The first closing tag ends the block, wherever it stands: so it is to the models, too.
    assert read(plan_answer(FORMATS, AUTO, None, "assistant: "), pieces) == [
        ReasoningPart('Maybe <tool_call>{"name": "f", "arguments": {"a": "'),
        TextPart('"}}</tool_call>?\n</think>\n\nLet me see.'),
        ToolCallPart(index=0, id="0", name="f", arguments=arguments),
        ToolCallPart(index=1, id="1", name="f", arguments=arguments),
    ]


def test_an_answer_without_tools_and_reasoning_is_passed_on_as_it_is():
    plan = plan_answer(AnswerFormats(tools=ToolFormat.HERMES), ToolUse(), None, "x")
    assert plan.is_plain
    assert plan.grammar is None
    assert read(plan, [CALL]) == [TextPart(CALL)]
    assert not plan_answer(FORMATS, ToolUse(), None, "x").is_plain


def test_calls_of_an_unknown_format_can_be_forced_and_not_left_to_the_model():
    with pytest.raises(InvalidRequest, match="--tool-call-parser"):
        plan_answer(AnswerFormats(), AUTO, None, "x")
    plan = plan_answer(AnswerFormats(), ToolUse(tools=TOOLS, mode="named", named="g"), None, "x")
    assert plan.grammar is not None
    assert read(plan, ['{"name": "g", "parameters": {}}']) == [ToolCallPart(index=0, id="0", name="g", arguments="{}")]


def test_control_tokens_stay_where_they_are_tags():
    formats = AnswerFormats(tools=ToolFormat.MISTRAL, special_ids={"[TOOL_CALLS]": 5})
    assert plan_answer(formats, AUTO, None, "x").keeps_special_tokens
    assert not plan_answer(formats, ToolUse(), None, "x").keeps_special_tokens
