"""A whole answer as the parts that a stream would have brought."""

from __future__ import annotations

from ..answers.parts import AnswerPart, ReasoningPart, TextPart, ToolCallPart
from .chat_call import ChatAnswer


def answer_parts(answer: ChatAnswer) -> list[AnswerPart]:
    """Return reasoning, text and calls, in the order in which models write them."""
    parts: list[AnswerPart] = []
    if answer.reasoning:
        parts.append(ReasoningPart(answer.reasoning))
    if answer.text:
        parts.append(TextPart(answer.text))
    for index, call in enumerate(answer.tool_calls):
        parts.append(ToolCallPart(index=index, id=call.id, name=call.name, arguments=call.arguments))
    return parts
