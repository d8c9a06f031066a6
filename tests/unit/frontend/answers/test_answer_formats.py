"""What a model's template and vocabulary say about its answers."""

from __future__ import annotations

import pytest

from pagewire.frontend.answers.answer_formats import AnswerFormats, ReasoningFormat, Thinking, find_formats
from pagewire.frontend.answers.tool_parsers.formats import ToolFormat
from tests.support.http_server import byte_tokenizer

QWEN3, R1 = ReasoningFormat.QWEN3, ReasoningFormat.DEEPSEEK_R1


def found(template: str | None, **parsers: str) -> AnswerFormats:
    return find_formats(template, byte_tokenizer(), **parsers)


def test_reasoning_is_seen_from_the_template_or_said():
    assert found(None).reasoning is None
    assert found("{{ messages }}").reasoning is None
    assert found("{{ content.split('</think>') }}<think>\n").reasoning is QWEN3
    assert found("{{ content.split('</think>')[-1] }}").reasoning is R1
    assert found("<think></think>", reasoning_parser="none").reasoning is None
    assert found(None, reasoning_parser="deepseek_r1").reasoning is R1


def test_a_parser_that_is_named_wins_over_the_template():
    assert found("{{ tools }}<tool_call>").tools is ToolFormat.HERMES
    assert found("{{ tools }}<tool_call>", tool_parser="mistral").tools is ToolFormat.MISTRAL
    assert found("{{ tools }}<tool_call>", tool_parser="none").tools is None
    assert found(None, tool_parser="pythonic").tools is ToolFormat.PYTHONIC


@pytest.mark.parametrize(
    ("reasoning", "prompt", "thinking"),
    [
        (None, "<think>", Thinking.NONE),
        (QWEN3, "assistant\n", Thinking.POSSIBLE),
        (QWEN3, "assistant\n<think>\n", Thinking.OPEN),
        (QWEN3, "assistant\n<think>\n\n</think>\n\n", Thinking.NONE),
        (R1, "assistant\n", Thinking.OPEN),
        (R1, "<think>\n\n</think>\n\n", Thinking.NONE),
    ],
)
def test_the_prompt_says_whether_reasoning_comes(reasoning, prompt, thinking):
    assert AnswerFormats(reasoning=reasoning).thinking(prompt) is thinking


def test_an_answer_that_goes_on_goes_on_with_its_reasoning():
    formats = AnswerFormats(reasoning=R1)
    assert formats.thinking("<think>\nHm", begins_answer=False) is Thinking.OPEN
    assert formats.thinking("<think>\nHm</think> Yes", begins_answer=False) is Thinking.NONE
    assert formats.thinking("Yes", begins_answer=False) is Thinking.NONE


def test_tags_that_are_control_tokens_have_to_stay_in_the_text():
    formats = AnswerFormats(special_ids={"[TOOL_CALLS]": 5, "</think>": 6})
    assert formats.is_special(ToolFormat.MISTRAL, Thinking.NONE)
    assert not formats.is_special(ToolFormat.HERMES, Thinking.NONE)
    assert formats.is_special(None, Thinking.POSSIBLE)
