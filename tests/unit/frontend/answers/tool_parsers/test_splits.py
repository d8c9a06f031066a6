"""Every format, every split: the parts are those of the whole text."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagewire.frontend.answers.collector import merge_parts
from pagewire.frontend.answers.parts import AnswerPart, TextPart, ToolCallPart
from pagewire.frontend.answers.tool_parsers.formats import PARSERS, ToolFormat

NAMES = ("get_weather", "run", "f")
H, L, M, P = ToolFormat.HERMES, ToolFormat.LLAMA3_JSON, ToolFormat.MISTRAL, ToolFormat.PYTHONIC
RUN = '{"command": "mkdir -p a/{b,c \\"x} ]"}'  # brackets and quotes within a string


def calls(*named: tuple[str, str]) -> list[AnswerPart]:
    return [
        ToolCallPart(index=index, id=f"call{index}", name=name, arguments=arguments)
        for index, (name, arguments) in enumerate(named)
    ]


def hermes(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


# (format, text, parts)
SAMPLES = [
    (H, "Just text <b> {\"name\": 1} \n", [TextPart('Just text <b> {"name": 1} \n')]),
    (H, hermes("run", RUN), calls(("run", RUN))),
    (H, "Let me see.\n" + hermes("f", '{"a": {"b": [1, 2.5e3, true, null, "}"]}}'),
     [TextPart("Let me see."), *calls(("f", '{"a": {"b": [1, 2.5e3, true, null, "}"]}}'))]),
    (H, hermes("f", "{}") + "\n" + hermes("run", RUN) + "\n", calls(("f", "{}"), ("run", RUN))),
    (H, hermes("f", "{}") + hermes("run", RUN), calls(("f", "{}"), ("run", RUN))),
    (H, hermes("f", "{}") + " Done. ", [*calls(("f", "{}")), TextPart("Done. ")]),
    (H, '<tool_call>{"arguments": {"x": "</tool_call>"}, "name": "f"}</tool_call>',
     calls(("f", '{"x": "</tool_call>"}'))),
    (H, '<tool_call>{"name": "unheard_of", "arguments": {}}', calls(("unheard_of", "{}"))),
    (H, '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', calls(("f", '{"a": 1}'))),
    (H, '<tool_call>{"name": "f"}</tool_call>', calls(("f", "{}"))),
    (H, '<tool_call>{"name": "f"}\n</tool_', calls(("f", "{}"))),
    (H, '<tool_call>{"name": "f", "arguments": null}</tool_call>', calls(("f", "{}"))),
    (H, '<tool_call>{"name": "f", "arguments": {"a": "one\ntwo\tthree"}}</tool_call>',
     calls(("f", '{"a": "one\\ntwo\\tthree"}'))),
    (H, '<tool_call>{"name": "f", "arguments": {"a": "bc', calls(("f", '{"a": "bc'))),  # cut by length
    (H, '<tool_call>{"name": "f", "argum', [TextPart('<tool_call>{"name": "f", "argum')]),
    (H, "<tool_call>not json</tool_call>", [TextPart("<tool_call>not json</tool_call>")]),
    (H, "<tool_call>{'name': 'f'}</tool_call>", [TextPart("<tool_call>{'name': 'f'}</tool_call>")]),
    (H, '<tool_call>{"name": "f", "arguments": [1]}</tool_call>!',
     [TextPart('<tool_call>{"name": "f", "arguments": [1]}</tool_call>!')]),
    (H, '<tool_call>{"name": 5, "arguments": {}}', [TextPart('<tool_call>{"name": 5, "arguments": {}}')]),
    (H, "<tool_call>oops " + hermes("f", "{}"), [TextPart("<tool_call>oops"), *calls(("f", "{}"))]),
    (H, '<tool_call>{"name": "f", "arguments": {"a": 1]} rest', [*calls(("f", '{"a": 1')), TextPart("]} rest")]),
    (H, hermes("f", "{}") + "}", [*calls(("f", "{}")), TextPart("}")]),
    (H, 'x <tool_ca', [TextPart("x <tool_ca")]),
    (L, '{"name": "run", "parameters": ' + RUN + "}", calls(("run", RUN))),
    (L, ' {"type": "function", "name": "f", "parameters": {"a": 1}}; {"name": "run", "parameters": {}}',
     calls(("f", '{"a": 1}'), ("run", "{}"))),
    (L, '<|python_tag|>{"name": "other", "arguments": {}}', calls(("other", "{}"))),
    (L, 'I will.<|python_tag|>{"name": "f", "parameters": {}}', [TextPart("I will."), *calls(("f", "{}"))]),
    (L, '{"name": "other", "parameters": {}}', [TextPart('{"name": "other", "parameters": {}}')]),
    (L, '{"answer": 5, "name": "f"}', [TextPart('{"answer": 5, "name": "f"}')]),
    (L, '{"name": "f", "parameters": {}} ; and text', [*calls(("f", "{}")), TextPart("; and text")]),
    (L, '{"name": "f", "parameters": {}};{"x": 1}', [*calls(("f", "{}")), TextPart(';{"x": 1}')]),
    (L, "  plain {}", [TextPart("  plain {}")]),
    (L, '<|python_tag|>print("x")', [TextPart('<|python_tag|>print("x")')]),
    (M, '[TOOL_CALLS][{"name": "run", "arguments": ' + RUN + '}, {"name": "f", "arguments": {}, "id": "x"}]',
     calls(("run", RUN), ("f", "{}"))),
    (M, '[TOOL_CALLS] [{"name": "f", "arguments": {}}] ok', [*calls(("f", "{}")), TextPart("ok")]),
    (M, "[TOOL_CALLS]run[ARGS]" + RUN + '[TOOL_CALLS]f[CALL_ID]abc123[ARGS]{"a": 1}',
     calls(("run", RUN), ("f", '{"a": 1}'))),
    (M, 'Hm. [TOOL_CALLS]f{"a": 1}', [TextPart("Hm."), *calls(("f", '{"a": 1}'))]),
    (M, "[TOOL_CALLS]f[ARGS][1]", [TextPart("[TOOL_CALLS]f[ARGS][1]")]),
    (M, "[TOOL_CALLS]f and g", [TextPart("[TOOL_CALLS]f and g")]),
    (M, "[TOOL_CALLS]f[ARG", [TextPart("[TOOL_CALLS]f[ARG")]),
    (M, "[TOOL_CALLS]", [TextPart("[TOOL_CALLS]")]),
    (M, "[TOOL_CALLS]f[ARGS]{\"a\": ", calls(("f", '{"a": '))),
    (M, "see [1] [TOOLS]", [TextPart("see [1] [TOOLS]")]),
    (P, "[f(a=1, b='it\\'s (', c=[True, None, -1.5, {'k': (1, 2)}])]",
     calls(("f", '{"a": 1, "b": "it\'s (", "c": [true, null, -1.5, {"k": [1, 2]}]}'))),
    (P, '[get_weather(city="Zürich"), f()]', calls(("get_weather", '{"city": "Zürich"}'), ("f", "{}"))),
    (P, '<|python_start|>[f(a=true)]<|python_end|>', calls(("f", '{"a": true}'))),
    (P, "[1] says so", [TextPart("[1] says so")]),
    (P, "[get_rain(a=1)]", [TextPart("[get_rain(a=1)]")]),
    (P, "[f(1)]", [TextPart("[f(1)]")]),
    (P, "[f(a=open('x'))]", [TextPart("[f(a=open('x'))]")]),
    (P, "[f(a=1), f(b=g)] x", [*calls(("f", '{"a": 1}')), TextPart(", f(b=g)] x")]),
    (P, "[f(a=1", [TextPart("[f(a=1")]),
    (P, " [get_wea", [TextPart(" [get_wea")]),
    (P, "Hm. <|tool_call_start|>[other(a=1)]<|tool_call_end|>Done.",
     [TextPart("Hm."), *calls(("other", '{"a": 1}')), TextPart("Done.")]),
    (P, "<|tool_call_start|>f(a=1)", [TextPart("<|tool_call_start|>f(a=1)")]),
    (P, "<|python_start|>[print", [TextPart("<|python_start|>[print")]),
    (P, "Text first. [f(a=1)]", [TextPart("Text first. [f(a=1)]")]),
]  # fmt: skip


def read(tool_format: ToolFormat, pieces: list[str], *, is_parallel: bool = True) -> list[AnswerPart]:
    ids = (f"call{number}" for number in itertools.count())
    parser = PARSERS[tool_format](NAMES, lambda: next(ids), is_parallel=is_parallel)
    parts = [part for piece in pieces for part in parser.push(piece)]
    return merge_parts([*parts, *parser.finish()])


@pytest.mark.parametrize(("tool_format", "text", "parts"), SAMPLES)
def test_whole_text_is_read(tool_format, text, parts):
    assert read(tool_format, [text]) == parts


@pytest.mark.parametrize(("tool_format", "text", "parts"), SAMPLES)
def test_character_by_character_and_every_cut_in_two_give_the_same(tool_format, text, parts):
    assert read(tool_format, list(text)) == parts
    for at in range(len(text) + 1):
        assert read(tool_format, [text[:at], text[at:]]) == parts, at


@settings(derandomize=True, deadline=None)
@given(sample=st.sampled_from(SAMPLES), data=st.data())
def test_any_split_gives_the_same(sample, data):
    tool_format, text, parts = sample
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)))))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert read(tool_format, pieces) == parts


_FRAGMENTS = st.sampled_from(
    [
        "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", "<|python_start|>", "[", "]", "{",
        "}", '{"name": "f", "arguments": {', '"a": 1', '"', "\\", ", ", ";", " ", "\n", "f", "f(", "a=1", ")", "é",
        "null", ":",
    ]
)  # fmt: skip


@settings(derandomize=True, deadline=None)
@given(tool_format=st.sampled_from(ToolFormat), fragments=st.lists(_FRAGMENTS, max_size=12), data=st.data())
def test_whatever_a_model_writes_is_read_alike_however_it_is_cut(tool_format, fragments, data):
    text = "".join(fragments)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)))))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert read(tool_format, pieces) == read(tool_format, [text])


_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**6), 10**6)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@settings(derandomize=True, deadline=None)
@given(arguments=st.dictionaries(st.text(max_size=5), _VALUES, max_size=4), ascii_only=st.booleans())
def test_arguments_are_the_models_json(arguments, ascii_only):
    written = json.dumps(arguments, ensure_ascii=ascii_only)
    for tool_format, text in (
        (H, hermes("run", written)),
        (L, f'{{"name": "run", "parameters": {written}}}'),
        (M, f'[TOOL_CALLS][{{"name": "run", "arguments": {written}}}]'),
        (M, f"[TOOL_CALLS]run[ARGS]{written}"),
    ):
        assert read(tool_format, list(text)) == calls(("run", written))


def test_arguments_come_while_they_are_written():
    parser = PARSERS[H](NAMES, lambda: "id")
    assert parser.push('<tool_call>{"name": "f"') == []
    assert parser.push(', "arguments": {"a": "lo') == [ToolCallPart(index=0, id="id", name="f", arguments='{"a": "lo')]
    assert parser.push("ng") == [ToolCallPart(index=0, arguments="ng")]
    assert parser.push('"}}</tool') == [ToolCallPart(index=0, arguments='"}')]


def test_without_parallel_calls_the_first_is_kept():
    text = hermes("f", "{}") + hermes("run", RUN) + " Done."
    assert read(H, [text], is_parallel=False) == [*calls(("f", "{}")), TextPart("Done.")]
