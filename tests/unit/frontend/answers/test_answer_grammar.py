"""Grammars of answers: what they let through, by llguidance itself, is what the parsers read."""

from __future__ import annotations

import json

import msgspec
import pytest
from llguidance import LLMatcher, LLTokenizer

from pagewire.frontend.answers.answer_formats import AnswerFormats, ReasoningFormat, Thinking
from pagewire.frontend.answers.answer_grammar import MAX_CALLS, answer_grammar, forced_format
from pagewire.frontend.answers.collector import merge_parts
from pagewire.frontend.answers.parts import ToolCallPart
from pagewire.frontend.answers.tool_parsers.formats import ToolFormat, make_parser
from pagewire.frontend.answers.tools import Tool, ToolUse
from pagewire.ipc.errors import InvalidRequest
from pagewire.ipc.structured_outputs import StructuredOutputs

CITY = Tool(
    name="get_weather",
    parameters={
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"$ref": "#/$defs/days"}},
        "required": ["city"],
        "$defs": {"days": {"type": "integer", "minimum": 1}},
    },
)
TIME = Tool(name="get_time")
REQUIRED = ToolUse(tools=(CITY, TIME), mode="required")
NAMED = ToolUse(tools=(CITY, TIME), mode="named", named="get_weather")
NONE = ToolUse()


def matches(grammar: StructuredOutputs | None, text: str) -> bool:
    """Whether the grammar lets `text` through and may end behind it."""
    assert grammar is not None
    assert grammar.grammar is not None
    tokenizer = LLTokenizer("byte")
    matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_lark(grammar.grammar))
    assert not matcher.is_error(), matcher.get_error()
    tokens = tokenizer.tokenize_str(text)
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


def hermes(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def llama(name: str, arguments: str) -> str:
    return f'{{"name": "{name}", "parameters": {arguments}}}'


def mistral(*calls: tuple[str, str]) -> str:
    entries = ", ".join(f'{{"name": "{name}", "arguments": {arguments}}}' for name, arguments in calls)
    return f"[TOOL_CALLS][{entries}]"


ARGUMENTS = '{"city": "Zürich {", "days": 3}'
TWO = [("get_weather", ARGUMENTS), ("get_time", "{}")]
TEXTS = {
    ToolFormat.HERMES: "\n".join(hermes(*call) for call in TWO),
    ToolFormat.LLAMA3_JSON: "; ".join(llama(*call) for call in TWO),
    ToolFormat.MISTRAL: mistral(*TWO),
}


@pytest.mark.parametrize("tool_format", [*ToolFormat, None])
def test_forced_calls_are_let_through_and_read_back(tool_format):
    formats = AnswerFormats(tools=tool_format)
    text = TEXTS[forced_format(formats)]
    assert matches(answer_grammar(None, REQUIRED, formats, Thinking.NONE), text)
    parser = make_parser(forced_format(formats), REQUIRED.names, is_parallel=True)
    parts = merge_parts([*parser.push(text), *parser.finish()])
    assert [(part.name, part.arguments) for part in parts if isinstance(part, ToolCallPart)] == TWO


def test_newer_mistral_vocabularies_put_the_name_first():
    formats = AnswerFormats(tools=ToolFormat.MISTRAL, special_ids={"[TOOL_CALLS]": 257, "[ARGS]": 258})
    grammar = answer_grammar(None, NAMED, formats, Thinking.NONE)
    assert grammar is not None
    assert 'call_0: "get_weather" <[258]> call_0_arguments\n' in (grammar.grammar or "")
    assert "calls: <[257]> call\n" in (grammar.grammar or "")


HERMES = AnswerFormats(tools=ToolFormat.HERMES)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Sure.",
        hermes("get_weather", "{}"),  # the city is required
        hermes("get_weather", '{"city": "x", "country": "y"}'),  # and nothing else is declared
        hermes("get_weather", '{"city": "x", "days": 0}'),
        hermes("get_time", '{"x": 1}'),
        hermes("unheard_of", "{}"),
        hermes("get_time", "{}") + " and text",
    ],
)
def test_what_is_no_call_of_the_tools_is_not_let_through(text):
    assert not matches(answer_grammar(None, REQUIRED, HERMES, Thinking.NONE), text)


def test_a_named_tool_is_called_once():
    grammar = answer_grammar(None, NAMED, HERMES, Thinking.NONE)
    call = hermes("get_weather", '{"city": "x"}')
    assert matches(grammar, call)
    assert not matches(grammar, hermes("get_time", "{}"))
    assert not matches(grammar, call + "\n" + call)


def test_calls_are_bounded_and_one_without_parallel_calls():
    call = hermes("get_time", "{}")
    grammar = answer_grammar(None, REQUIRED, HERMES, Thinking.NONE)
    assert matches(grammar, "\n".join([call] * MAX_CALLS))
    assert not matches(grammar, "\n".join([call] * (MAX_CALLS + 1)))
    single = ToolUse(tools=(CITY, TIME), mode="required", parallel=False)
    assert not matches(answer_grammar(None, single, HERMES, Thinking.NONE), call + "\n" + call)


@pytest.mark.parametrize("tool_format", [ToolFormat.HERMES, ToolFormat.MISTRAL])
def test_strict_tools_are_called_right_where_the_model_may_choose(tool_format):
    formats = AnswerFormats(tools=tool_format)
    strict = ToolUse(tools=(msgspec.structs.replace(CITY, is_strict=True), TIME), mode="auto")
    grammar = answer_grammar(None, strict, formats, Thinking.NONE)
    call = TEXTS[tool_format]
    tag = call[: call.index("{")]
    for text in ("", "Plain { <tool", call, f"Hm. {call} Done.", f"{call}\n{call}"):
        assert matches(grammar, text), text
    for text in (f"Hm. {tag}", f"{tag}oops", call.replace("get_time", "get_rain"), call.replace("3", '"3"')):
        assert not matches(grammar, text), text
    free = ToolUse(tools=(CITY, TIME), mode="auto")
    assert answer_grammar(None, free, formats, Thinking.NONE) is None
    assert answer_grammar(None, strict, AnswerFormats(tools=ToolFormat.LLAMA3_JSON), Thinking.NONE) is None


THINKS = AnswerFormats(tools=ToolFormat.HERMES, reasoning=ReasoningFormat.QWEN3)
FORMS = [
    (StructuredOutputs(json_object=True), '{"a": [1]}'),
    (StructuredOutputs(json={"type": "array", "items": {"type": "integer"}}), "[1, 2]"),
    (StructuredOutputs(json='{"enum": ["在线", "é"]}'), '"在线"'),
    (StructuredOutputs(regex="a/b\\/[0-9]+|\\\\"), "a/b/12"),
    (StructuredOutputs(regex=r"^[\w-]+ \d{4}$"), "ab_c-d 2024"),
    (StructuredOutputs(choice=["ja", 'sagt "nein"']), 'sagt "nein"'),
]


@pytest.mark.parametrize(("asked", "text"), FORMS)
def test_a_form_follows_the_reasoning(asked, text):
    is_open = answer_grammar(asked, NONE, THINKS, Thinking.OPEN)
    assert matches(is_open, f"Hm <b>\n</think>\n\n{text}")
    assert not matches(is_open, text)
    possible = answer_grammar(asked, NONE, THINKS, Thinking.POSSIBLE)
    assert matches(possible, f"<think>\nHm\n</think>\n\n{text}")
    assert matches(possible, text)
    assert not matches(possible, "Hm")
    assert answer_grammar(asked, NONE, THINKS, Thinking.NONE) == asked


@pytest.mark.parametrize(("asked", "text"), FORMS)
def test_a_model_may_call_a_tool_or_answer_in_the_form(asked, text):
    grammar = answer_grammar(asked, ToolUse(tools=(CITY, TIME), mode="auto"), HERMES, Thinking.NONE)
    assert matches(grammar, text)
    assert matches(grammar, TEXTS[ToolFormat.HERMES])
    assert not matches(grammar, "Hm")


def test_expressions_mean_what_they_mean_alone():
    digits = answer_grammar(StructuredOutputs(regex=r"^\d$"), NONE, THINKS, Thinking.POSSIBLE)
    assert matches(digits, "3")
    assert not matches(digits, "٣")
    dollar = answer_grammar(StructuredOutputs(regex=r"a\$"), NONE, THINKS, Thinking.POSSIBLE)
    assert matches(dollar, "a$")


def test_what_can_not_be_put_behind_reasoning_is_refused():
    asked = StructuredOutputs(grammar='start: "a"')
    with pytest.raises(InvalidRequest, match="enable_thinking"):
        answer_grammar(asked, NONE, THINKS, Thinking.OPEN)
    assert answer_grammar(asked, NONE, THINKS, Thinking.POSSIBLE) == asked


def test_a_form_and_a_forced_call_contradict_each_other():
    with pytest.raises(InvalidRequest, match="tool_choice"):
        answer_grammar(StructuredOutputs(json_object=True), REQUIRED, HERMES, Thinking.NONE)


def test_schemas_are_json_whatever_is_in_them():
    odd = Tool(name="odd", parameters={"type": "object", "properties": {'a"/\n': {"const": "</tool_call> ; // é"}}})
    use = ToolUse(tools=(odd,), mode="required")
    arguments = json.dumps({'a"/\n': "</tool_call> ; // é"}, ensure_ascii=False)
    assert matches(answer_grammar(None, use, HERMES, Thinking.NONE), hermes("odd", arguments))
