"""Grammars over a vocabulary whose tags are control tokens, by the core's own reading of it."""

from __future__ import annotations

import pytest
from llguidance import LLMatcher

from pagewire.engine_core.grammar.vocabulary import make_vocabulary
from pagewire.frontend.answers.answer_formats import AnswerFormats, ReasoningFormat, Thinking
from pagewire.frontend.answers.answer_grammar import answer_grammar
from pagewire.frontend.answers.tool_parsers.formats import ToolFormat
from pagewire.frontend.answers.tools import Tool, ToolMode, ToolUse

CALLS, ARGS, END_THINK = 257, 258, 259
VOCABULARY = make_vocabulary(
    [*(bytes([byte]) for byte in range(256)), b"\xff<eos>", b"\xff[TOOL_CALLS]", b"\xff[ARGS]", b"\xff</think>"],
    [256, CALLS, ARGS, END_THINK],
    [256],
)
FORMATS = AnswerFormats(
    tools=ToolFormat.MISTRAL,
    reasoning=ReasoningFormat.QWEN3,
    special_ids={"[TOOL_CALLS]": CALLS, "[ARGS]": ARGS, "</think>": END_THINK},
)
TOOL = Tool(name="f", parameters={"type": "object", "properties": {"a": {"type": "integer"}}}, is_strict=True)
CALL = [CALLS, *b"f", ARGS, *b'{"a": 1}']


@pytest.mark.parametrize(
    ("mode", "thinking", "token_ids", "is_let_through"),
    [
        ("required", Thinking.NONE, CALL, True),
        ("required", Thinking.NONE, CALL + CALL, True),
        ("required", Thinking.NONE, [*b"text"], False),
        ("required", Thinking.NONE, [*b'[TOOL_CALLS]f[ARGS]{"a": 1}'], False),  # spelled, not the token
        ("required", Thinking.OPEN, [*b"hm", END_THINK, *b"\n\n", *CALL], True),
        ("required", Thinking.OPEN, CALL, False),
        ("auto", Thinking.NONE, [*b"text"], True),
        ("auto", Thinking.NONE, [*b"text", *CALL, *b"text"], True),
        ("auto", Thinking.NONE, [CALLS, *b"g"], False),
        ("auto", Thinking.OPEN, [*b"hm", END_THINK, *b"text"], True),
    ],
)
def test_tags_are_the_tokens(mode: ToolMode, thinking: Thinking, token_ids: list[int], is_let_through: bool) -> None:
    grammar = answer_grammar(None, ToolUse(tools=(TOOL,), mode=mode), FORMATS, thinking)
    assert grammar is not None
    assert grammar.grammar is not None
    matcher = LLMatcher(VOCABULARY, LLMatcher.grammar_from_lark(grammar.grammar))
    assert not matcher.is_error(), matcher.get_error()
    num_taken = matcher.try_consume_tokens(token_ids)
    assert (num_taken == len(token_ids) and matcher.is_accepting()) == is_let_through
