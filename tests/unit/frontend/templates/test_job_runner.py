"""Whatever a template does, its job is answered: by a prompt, or by a refusal that can be sent."""

from __future__ import annotations

import pytest

from pagewire.frontend.templates.job_runner import JobRunner
from pagewire.frontend.templates.jobs import (
    HEADER,
    Job,
    Loaded,
    LoadTemplate,
    MessageDecoder,
    Refused,
    RenderChat,
    Rendered,
    Reply,
)
from pagewire.frontend.text.chat_template import ChatTemplate

REPLIES: MessageDecoder[Reply] = MessageDecoder(Reply)
USER = {"role": "user", "content": "hi"}


def ask(runner: JobRunner, job: Job) -> Reply:
    return REPLIES.decode(runner.answer(job)[HEADER.size :])


def runner_of(source: str | None) -> JobRunner:
    runner = JobRunner()
    assert ask(runner, LoadTemplate(source=source, special_tokens={"bos_token": "<s>"})) == Loaded()
    return runner


def test_the_loaded_template_sees_messages_arguments_and_special_tokens():
    runner = runner_of("{{ bos_token }}{{ messages[0].content }}{{ extra }}{{ add_generation_prompt }}")
    chat = RenderChat(messages=[USER], template_arguments={"extra": 5}, add_generation_prompt=False)
    assert ask(runner, chat) == Rendered(text="<s>hi5False")


def test_a_template_that_comes_with_a_chat_is_used_for_it_alone():
    runner = runner_of("own {{ messages[0].content }}")
    own = RenderChat(messages=[USER])
    brought = RenderChat(messages=[USER], source="{{ bos_token }} theirs")
    assert ask(runner, brought) == Rendered(text="<s> theirs")
    assert ask(runner, own) == Rendered(text="own hi")
    assert ask(runner, brought) == Rendered(text="<s> theirs")


def test_many_brought_templates_stay_bounded_and_right():
    runner = runner_of(None)
    for number in [*range(40), *range(40)]:
        assert ask(runner, RenderChat(messages=[USER], source=f"{{{{ 1 }}}}-{number}")) == Rendered(text=f"1-{number}")
    assert len(runner._compiled) <= 16


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{% for %}", "no valid Jinja"),
        ("{{ x|no_such_filter }}", "no_such_filter"),
        ("{% for a in [1] %}" * 25 + "{% endfor %}" * 25, "can't be compiled"),
        ("{{ (" + "(" * 5000 + "1" + ")" * 5001 + " }}", "chat template"),
    ],
)
def test_what_is_no_template_is_refused_on_loading(source, words):
    reply = ask(JobRunner(), LoadTemplate(source=source, special_tokens={}))
    assert isinstance(reply, Refused)
    assert words in reply.error.message


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ cycler.__init__.__globals__.os.system('id') }}",
        "{% for i in range(10**9) %}{% endfor %}",
        "{{ 1 / 0 }}",
        "{{ none + 1 }}",
        "{{ raise_exception('no') }}",
        "{{ raise_exception('\\ud83d') }}",
        "{{ '\\ud83d' }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% set d = {1: 2} %}{% for k in d %}{% set _ = d.pop(1) %}{% endfor %}",
        "{{ '%1000000000000d' % 1 }}",
    ],
)
def test_what_a_template_does_wrong_is_a_refusal_that_can_be_sent(source):
    reply = ask(runner_of(source), RenderChat(messages=[USER]))
    assert isinstance(reply, Refused), reply
    assert reply.error.kind == "InvalidRequest"
    assert reply.error.message


def test_a_refusal_does_not_quote_at_any_length():
    reply = ask(
        runner_of("{{ raise_exception(messages[0].content) }}"), RenderChat(messages=[USER | {"content": "x" * 10**6}])
    )
    assert isinstance(reply, Refused)
    assert len(reply.error.message) <= 2000


def test_a_prompt_beyond_what_is_sent_is_a_refusal():
    reply = ask(runner_of("{{ 'x' * (40 * 1024 * 1024) }}"), RenderChat(messages=[USER]))
    assert isinstance(reply, Refused)
    assert "bytes" in reply.error.message


def test_what_fills_the_memory_takes_the_brought_templates_with_it(monkeypatch):
    runner = runner_of("own")
    ask(runner, RenderChat(messages=[USER], source="theirs"))

    def fill_memory(*_args, **_options):
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(ChatTemplate, "render", fill_memory)
        assert isinstance(ask(runner, RenderChat(messages=[USER])), Refused)
    assert not runner._compiled
    assert ask(runner, RenderChat(messages=[USER])) == Rendered(text="own")
    assert ask(runner, RenderChat(messages=[USER], source="theirs")) == Rendered(text="theirs")
