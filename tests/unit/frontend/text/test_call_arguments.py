"""Arguments of earlier calls in the shape that a template takes."""

from __future__ import annotations

import pytest

from pagewire.frontend.text.chat_template import ChatTemplate

LOOP = "{% for m in messages %}{{ m.role }}:{{ m.content }}{% for c in m.tool_calls %}CALL{% endfor %}|{% endfor %}"
OBJECTS = LOOP.replace("CALL", "{{ c.function.name }}{{ c.function.arguments | tojson }}")
WHOLE = LOOP.replace("CALL", "{{ c.function | tojson }}")
JOINED = LOOP.replace("CALL", "{{ c.function.name + c.function.arguments }}")
PRINTED = LOOP.replace("CALL", "{{ c.function.name }}{{ c.function.arguments }}")


def rendered(template: str, arguments: object) -> str:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": None, "tool_calls": [call]}]
    return ChatTemplate(template).render(messages, add_generation_prompt=False)


@pytest.mark.parametrize("template", [OBJECTS, JOINED, PRINTED])
@pytest.mark.parametrize("arguments", ['{"a": "é"}', {"a": "é"}])
def test_every_template_prints_the_arguments_as_json(template, arguments):
    assert rendered(template, arguments) == 'user:q|assistant:f{"a": "é"}|'


def test_a_call_that_is_printed_whole_holds_an_object():
    assert rendered(WHOLE, '{"a": 1}') == 'user:q|assistant:{"name": "f", "arguments": {"a": 1}}|'


@pytest.mark.parametrize("template", [OBJECTS, JOINED])
def test_no_arguments_are_an_empty_object(template):
    assert rendered(template, "") == rendered(template, None) == "user:q|assistant:f{}|"


def test_a_model_sees_what_it_wrote_even_if_it_is_no_json():
    assert rendered(JOINED, '{"a": ') == 'user:q|assistant:f{"a": |'


@pytest.mark.parametrize("content", [None, ""])
def test_a_template_that_prints_calls_without_content_alone_gets_none(content):
    template = (
        "{% for m in messages %}{% if m.content is none %}{% for c in m.tool_calls %}"
        "{{ c.function.arguments | tojson }}{% endfor %}{% else %}{{ m.content }}{% endif %}|{% endfor %}"
    )
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": content, "tool_calls": [call]}]
    assert ChatTemplate(template).render(messages, add_generation_prompt=False) == 'q|{"a": 1}|'
