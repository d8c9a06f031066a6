"""A server whose chat template knows tools, and answers that call them and think before."""

from __future__ import annotations

import contextlib
from typing import Any

from pagewire.frontend.answers.answer_formats import AnswerFormats, ReasoningFormat
from pagewire.frontend.answers.tool_parsers.formats import ToolFormat
from pagewire.frontend.templates.renderer import SplitRenderer
from pagewire.ipc.requests import AddRequest
from tests.support.http_server import Running, byte_tokenizer, running_server
from tests.support.templates import InProcessRenderer

_TEMPLATE = (
    "{% if tools %}tools: {{ tools | tojson }}\n{% endif %}"
    "{% for message in messages %}{{ message.role }}: {{ message.content }}{% for call in message.tool_calls %}"
    "[{{ call.function.name }} {{ call.function.arguments | tojson }}]{% endfor %}{{ '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
THOUGHT = "<think>\nHm.\n</think>\n\nI look. "
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Zürich"}}\n</tool_call>'


def tool_server(*texts: str, **options: Any) -> contextlib.AbstractAsyncContextManager[Running]:
    """Serve answers in Hermes' format of calls, with reasoning in front as Qwen writes it."""
    formats = AnswerFormats(tools=ToolFormat.HERMES, reasoning=ReasoningFormat.QWEN3)
    chats = SplitRenderer(InProcessRenderer(_TEMPLATE), None)
    return running_server(*texts, formats=formats, chats=chats, info={"max_model_len": 2048}, **options)


def last_prompt(server: Running) -> str:
    """The text of the last request's prompt."""
    request = [each for each in server.core.received if isinstance(each, AddRequest)][-1]
    return byte_tokenizer().decode(request.inputs.prompt_token_ids, skip_special_tokens=False)
