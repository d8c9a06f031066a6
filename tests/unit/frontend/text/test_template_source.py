"""Which of a model's templates renders a chat."""

from __future__ import annotations

from pagewire.checkpoint.tokenizer.facts import TokenizerFacts
from pagewire.frontend.text.template_source import compile_template, template_source
from pagewire.frontend.tokenizer.tokenizer import Tokenizer
from tests.support.http_server import byte_tokenizer

QUESTION = [{"role": "user", "content": "hi"}]
TOOLS = [{"type": "function", "function": {"name": "f"}}]


def rendered(templates: dict[str, str], tools: list[dict[str, object]] | None) -> str:
    tokenizer = Tokenizer(byte_tokenizer()._backend, TokenizerFacts(special_tokens={}, chat_templates=templates))
    return compile_template(template_source(tokenizer)).render(QUESTION, tools=tools)


def test_a_template_for_tools_renders_chats_with_tools_alone():
    templates = {
        "default": "\n{{ messages[0].content }}!\n",
        "tool_use": "{{ tools[0].function.name }}: {% if 1 %}x{% endif %}\n",
    }
    assert rendered(templates, None) == rendered({"default": templates["default"]}, None) == "\nhi!"
    assert rendered(templates, TOOLS) == rendered({"default": templates["tool_use"]}, TOOLS) == "f: x"


def test_other_templates_are_not_used():
    assert rendered({"default": "a", "rag": "b"}, TOOLS) == "a"
