from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from pagewire.frontend.text.chat_template import ChatTemplate
from pagewire.ipc.errors import InvalidRequest

SMOLLM2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\n"
    "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA3 = """{{- bos_token }}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- endif %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{{- "Today Date: " + date_string + "\\n\\n" }}
{%- if tools is not none %}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
        {{- message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("This model only supports single tool-calls at once!") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '{"name": "' + tool_call.name + '", "parameters": ' }}
        {{- tool_call.arguments | tojson }}
        {{- "}<|eot_id|>" }}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""
QWEN = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
    {{- "# Tools\\n<tools>" }}
    {%- for tool in tools %}{{- "\\n" }}{{- tool | tojson }}{%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- endif %}
{%- set ns = namespace(last=messages|length - 1) %}
{%- for message in messages %}
    {%- set content = '' %}
    {%- if message.content is string %}{%- set content = message.content %}{%- endif %}
    {%- if message.role == "assistant" %}
        {%- if '</think>' in content %}{%- set content = content.split('</think>')[-1].lstrip('\\n') %}{%- endif %}
        {% generation %}{{- '<|im_start|>assistant\\n' + content }}{%- endgeneration %}
        {%- if message.tool_calls %}
            {%- for tool_call in message.tool_calls %}{{- '\\n<tool_call>' + tool_call.function.name }}{%- endfor %}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {{- '<|im_start|>user\\n<tool_response>\\n' + content + '\\n</tool_response><|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- endif %}
    {%- if loop.index0 > ns.last %}{% break %}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}
"""
MISTRAL = (
    "{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}"
    "{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token}}"
    "{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}"
)
PARTS_ONLY = (
    "{% for message in messages %}<{{ message.role }}>"
    "{% for part in message.content %}{% if part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %}{% endfor %}"
)
BOTH = (
    "{% for message in messages %}<{{ message.role }}>{% if message.content is string %}{{ message.content }}"
    "{% else %}{% for part in message.content %}[{{ part['text'] }}]{% endfor %}{% endif %}{% endfor %}"
)
PRINTS_ANYTHING = "{% for message in messages %}<{{ message.role }}>{{ message.content }}{% endfor %}"
TEMPLATES = {"smollm2": SMOLLM2, "llama3": LLAMA3, "qwen": QWEN, "mistral": MISTRAL}

USER = {"role": "user", "content": "What is 2+2?  "}
ANSWER = {"role": "assistant", "content": "<think>hm</think>\nIt is 4 "}
SYSTEM = {"role": "system", "content": ' Be <brief> & "kind" — é '}
CALL = {
    "role": "assistant", "content": "",
    "tool_calls": [{"id": "a", "type": "function", "function": {"name": "add", "arguments": {"b": 2, "a": "<é>"}}}],
}  # fmt: skip
RESULT = {"role": "tool", "tool_call_id": "a", "name": "add", "content": "four"}
TOOLS = [{"type": "function", "function": {"name": "add", "description": "adds <é> & more", "parameters": {}}}]
CONVERSATIONS = [[USER], [USER, ANSWER], [USER, ANSWER, USER], [SYSTEM, USER], [SYSTEM, USER, CALL, RESULT]]
SPECIAL_TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


def template(source: str | None) -> ChatTemplate:
    return ChatTemplate(source, special_tokens=SPECIAL_TOKENS)


@pytest.fixture(scope="module")
def reference() -> Any:
    from transformers.utils.chat_template_utils import render_jinja_template

    return render_jinja_template


def is_refused(source: str, messages: list[dict[str, Any]]) -> bool:
    return source == MISTRAL and (messages[0]["role"] == "system" or any(m["role"] == "tool" for m in messages))


@pytest.mark.slow  # imports transformers
@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("messages", CONVERSATIONS)
@pytest.mark.parametrize("tools", [None, TOOLS])
@pytest.mark.parametrize("add_generation_prompt", [True, False])
def test_renders_as_transformers_does(
    name: str, messages: list[dict[str, Any]], tools: list[Any] | None, add_generation_prompt: bool, reference: Any
) -> None:
    source = TEMPLATES[name]
    if is_refused(source, messages):
        pytest.skip("the template refuses this conversation")
    options = {"add_generation_prompt": add_generation_prompt, "tools": tools}
    expected, _ = reference([messages], chat_template=source, enable_thinking=False, **SPECIAL_TOKENS, **options)
    text = template(source).render(messages, template_arguments={"enable_thinking": False}, **options)
    assert text == expected[0]


@pytest.mark.slow  # imports transformers
@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("content", ["The answer is", "The answer is ", " is\n", "4"])
def test_continues_the_final_message_as_transformers_does(name: str, content: str, reference: Any) -> None:
    messages = [USER, {"role": "assistant", "content": content}]
    options = {"add_generation_prompt": False, "continue_final_message": True}
    expected, _ = reference([messages], chat_template=TEMPLATES[name], **SPECIAL_TOKENS, **options)
    text = template(TEMPLATES[name]).render(messages, **options)
    assert text == expected[0]
    assert text.endswith((content, content.strip()))


def test_smollm2_gets_its_default_system_prompt() -> None:
    assert template(SMOLLM2).render([{"role": "user", "content": "hi"}]) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_begin_of_text_is_printed_once() -> None:
    assert template(MISTRAL).render([USER]).count("<s>") == 1


PARTS = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]


@pytest.mark.parametrize("role", ["user", "system", "assistant", "tool"])
@pytest.mark.parametrize(
    ("source", "string", "listed"),
    [
        (PRINTS_ANYTHING, "hi", "one\ntwo"),
        (QWEN, "hi", "one\ntwo"),
        (PARTS_ONLY, "hi", "onetwo"),
        (BOTH, "hi", "[one][two]"),
    ],
    ids=["prints_anything", "strings_only", "parts_only", "both"],
)
def test_content_reaches_the_prompt_in_the_shape_that_the_template_takes(
    source: str, string: str, listed: str, role: str
) -> None:
    for content, expected in (("hi", string), (PARTS, listed)):
        messages = [USER, CALL, {"role": role, "content": content, "tool_call_id": "a"}]
        text = template(source).render(messages, add_generation_prompt=False)
        assert expected in text
        assert "'type'" not in text


def test_string_only_template_that_adds_strings_takes_parts() -> None:
    assert "one\ntwo" in template(SMOLLM2).render([{"role": "user", "content": PARTS}])


def test_shape_is_found_per_role() -> None:
    source = (
        "{% for message in messages %}{% if message.role == 'tool' %}{{ message.content }}"
        "{% else %}{% for part in message.content %}{{ part.text }}{% endfor %}{% endif %}{% endfor %}"
    )
    messages = [{"role": "user", "content": "hi"}, CALL, {"role": "tool", "tool_call_id": "a", "content": PARTS}]
    assert template(source).render(messages) == "hione\ntwo"


@pytest.mark.parametrize("content", [{"content": ""}, {"content": None}, {}, {"content": []}])
def test_assistant_without_content_keeps_its_place_and_its_calls(content: dict[str, Any]) -> None:
    message = {"role": "assistant", "tool_calls": CALL["tool_calls"], "name": None, **content}
    text = template(QWEN).render([USER, message, RESULT])
    assert "<|im_start|>assistant\n\n<tool_call>add<|im_end|>" in text
    assert "None" not in text


def test_no_tool_calls_are_as_an_empty_list_of_them() -> None:
    messages = [USER, {"role": "assistant", "content": "hi", "tool_calls": []}, USER]
    without = [USER, {"role": "assistant", "content": "hi"}, USER]
    assert template(LLAMA3).render(messages) == template(LLAMA3).render(without)


def test_messages_of_the_client_are_not_changed() -> None:
    messages = [{"role": "user", "content": list(PARTS)}, {"role": "assistant", "content": None, "tool_calls": []}]
    template(PARTS_ONLY).render(messages, add_generation_prompt=False, continue_final_message=True)
    assert messages == [
        {"role": "user", "content": PARTS},
        {"role": "assistant", "content": None, "tool_calls": []},
    ]


def test_date_comes_from_the_clock_given() -> None:
    clock = lambda: dt.datetime(2024, 7, 26, tzinfo=dt.UTC)  # noqa: E731
    assert "Today Date: 26 Jul 2024" in ChatTemplate(LLAMA3, special_tokens=SPECIAL_TOKENS, now=clock).render([USER])


def test_arguments_of_the_client_reach_the_template_but_replace_nothing_of_ours() -> None:
    source = "{{ style }}{{ messages|length }}{{ add_generation_prompt }}{{ bos_token }}"
    arguments = {"style": "s", "messages": [1, 2, 3], "add_generation_prompt": False, "self": 1}
    assert template(source).render([USER], template_arguments=arguments) == "s1True<s>"


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([SYSTEM, USER], "Conversation roles must alternate"),
        ([USER, USER], "Conversation roles must alternate"),
        ([ANSWER], "Conversation roles must alternate"),
        ([USER, {"role": "tool", "content": "x"}], "Only user and assistant roles are supported!"),
    ],
)
def test_refusal_of_the_template_is_the_requests_fault_in_the_templates_words(
    messages: list[dict[str, Any]], reason: str
) -> None:
    with pytest.raises(InvalidRequest, match=reason) as caught:
        template(MISTRAL).render(messages)
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[9].content }}",
        "{{ nothing.at.all }}",
        "{{ 1 / 0 }}",
        "{{ 'a' + 1 }}",
        "{{ messages | tojson(indent='x', separators=3) }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ range(10 ** 9) | list }}",
    ],
)
def test_fault_inside_a_template_is_the_requests_fault(source: str) -> None:
    with pytest.raises(InvalidRequest, match=r"chat template refuses these messages: ."):
        template(source).render([USER])


@pytest.mark.parametrize(
    ("message", "named"),
    [
        ({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}, "type 'image_url'"),
        ({"role": "user", "content": [{"type": "text"}]}, r"content\[0\]\.text must be a string"),
        ({"role": "user", "content": [3]}, r"content\[0\] must be an object, not int"),
        ({"role": "user", "content": 3}, "content must be a string or a list of parts, not int"),
        ({"role": 3, "content": "x"}, r"messages\[0\]\.role must be a string, not 3"),
        ({"content": "x"}, r"messages\[0\]\.role must be a string, not None"),
    ],
)
def test_message_that_is_not_text_is_refused_by_its_place(message: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidRequest, match=named):
        template(SMOLLM2).render([message])


def test_model_without_a_template_names_the_remedy() -> None:
    with pytest.raises(InvalidRequest, match="--chat-template FILE"):
        template(None).render([USER])


def test_broken_template_is_refused_with_its_line() -> None:
    with pytest.raises(InvalidRequest, match=r"no valid Jinja: unexpected '}' \(line 2\)"):
        template("{% for m in messages %}\n{{ m }")
    with pytest.raises(InvalidRequest, match="no valid Jinja"):
        template("{% for m in messages %}")


def test_continuing_and_beginning_a_message_exclude_each_other() -> None:
    with pytest.raises(InvalidRequest, match="set only one of them"):
        template(SMOLLM2).render([USER], continue_final_message=True)


def test_continuing_needs_a_message_that_the_template_prints() -> None:
    options = {"add_generation_prompt": False, "continue_final_message": True}
    with pytest.raises(InvalidRequest, match="messages is empty"):
        template(SMOLLM2).render([], **options)
    with pytest.raises(InvalidRequest, match="drops the last message"):
        template("{{ bos_token }}").render([USER], **options)


def test_continuing_a_list_of_parts_goes_on_with_the_last_one() -> None:
    options = {"add_generation_prompt": False, "continue_final_message": True}
    assert template(BOTH).render([{"role": "assistant", "content": PARTS}], **options) == "<assistant>[one][two"


def test_a_developer_is_the_system_where_a_template_does_not_know_the_role():
    known = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    unknown = known.replace("[{{", "{% if m.role != 'developer' %}[{{").replace("content }}", "content }}{% endif %}")
    raising = known.replace("[{{", "{% if m.role == 'developer' %}{{ raise_exception('no') }}{% endif %}[{{")
    messages = [{"role": "developer", "content": "be brief"}, {"role": "user", "content": "hi"}]
    for source, role in ((known, "developer"), (unknown, "system"), (raising, "system")):
        assert ChatTemplate(source).render(messages, add_generation_prompt=False) == f"[{role}]be brief[user]hi"
