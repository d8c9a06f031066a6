"""Which format a chat template shows."""

from __future__ import annotations

import pytest

from pagewire.frontend.answers.tool_parsers.formats import ToolFormat, call_ids, find_format


@pytest.mark.parametrize(
    ("template", "tool_format"),
    [
        (None, None),
        ("{{ messages }}", None),
        ('{% if tools %}...<tool_call>\n{"name": <function-name>}\n</tool_call>{% endif %}', ToolFormat.HERMES),
        ("{% if tools %}<tool_call>\n<function=example>{% endif %}", None),
        ("{% if tools %}<tool_call>{name}<arg_key>{% endif %}", None),
        ("{{ '[AVAILABLE_TOOLS]' }}{{ tools }}[TOOL_CALLS] [", ToolFormat.MISTRAL),
        (
            '{% if tools %}Respond in the format {"name": function name, "parameters": dictionary}',
            ToolFormat.LLAMA3_JSON,
        ),
        ("{% if tools %}<|python_tag|>", ToolFormat.LLAMA3_JSON),
        ("{% if tools %}[func_name1(params_name1=params_value1...), func_name2(params)]", ToolFormat.PYTHONIC),
        ("{{ tools }}", None),
    ],
)
def test_a_template_shows_its_format(template, tool_format):
    assert find_format(template) is tool_format


def test_ids_are_such_as_templates_take():
    assert call_ids(ToolFormat.HERMES)().startswith("call_")
    mistral = call_ids(ToolFormat.MISTRAL)
    assert len(mistral()) == 9
    assert mistral().isalnum()
    assert mistral() != mistral()
