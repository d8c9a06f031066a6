"""Chats rendered in a real helper process: it may be killed, stopped or filled up, and the next chat is rendered."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import sys
import time

import pytest

from pagewire.frontend.templates import helper as helper_module
from pagewire.frontend.templates.helper import MODULE, TemplateHelper
from pagewire.frontend.templates.jobs import LoadTemplate, RenderChat
from pagewire.frontend.templates.limits import WALL_LIMIT_S
from pagewire.ipc.errors import EngineError, InvalidRequest, Overloaded
from tests.support.children import ROOT, is_alive, make_importable, wait_until
from tests.support.faulty_template_process import BABBLES, EXITS, EXITS_ONCE, STOPS

FAULTY = "tests.support.faulty_template_process"
TEMPLATE = "{{ bos_token }}{% for message in messages %}[{{ message.role }}] {{ message.content }}{% endfor %}"


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    make_importable(monkeypatch)


class Running:
    """A helper, closed at the end of the block."""

    def __init__(self, source: str | None = TEMPLATE, *, module: str = MODULE, wall_limit_s: float = WALL_LIMIT_S):
        load = LoadTemplate(source=source, special_tokens={"bos_token": "<s>"})
        self.helper = TemplateHelper(
            load, name="templates", log_level="warning", module=module, wall_limit_s=wall_limit_s
        )

    async def __aenter__(self) -> TemplateHelper:
        return self.helper

    async def __aexit__(self, *exc_info: object) -> None:
        await self.helper.aclose()
        assert self.helper.pid is None or not is_alive(self.helper.pid)


def chat(content: str, source: str | None = None) -> RenderChat:
    return RenderChat(messages=[{"role": "user", "content": content}], source=source)


async def test_a_chat_is_rendered_by_the_loaded_template():
    async with Running() as helper:
        await helper.loaded()
        assert await helper.render(chat("hi")) == "<s>[user] hi"
        with pytest.raises(InvalidRequest, match="surrogate"):
            await helper.render(chat("\ud83d"))


async def test_a_long_chat_goes_through_whole():
    text = "é" * 3_000_000
    async with Running() as helper:
        assert await helper.render(chat(text)) == f"<s>[user] {text}"


async def test_chats_that_come_together_each_get_their_own_prompt():
    async with Running() as helper:
        prompts = await asyncio.gather(*(helper.render(chat(str(number))) for number in range(50)))
        assert prompts == [f"<s>[user] {number}" for number in range(50)]


ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"


@pytest.mark.parametrize("source", [ENDLESS, "{{ 9**(9**9) }}", "{{ messages[0].content|length ** (9**9) }}"])
async def test_an_endless_template_is_cut_and_the_next_chat_is_rendered(source):
    async with Running(None) as helper:
        await helper.loaded()
        former = helper.pid
        started = time.process_time()
        with pytest.raises(InvalidRequest, match=r"more than the 0\.8 s"):
            await helper.render(chat("hi hi", source))
        assert time.process_time() - started < 0.5, "the event loop's own process did not compute"
        assert await helper.render(chat("hi", TEMPLATE)) == "<s>[user] hi"
        assert helper.pid != former
        assert not is_alive(former)


async def test_the_event_loop_runs_on_while_a_template_does_not_end():
    async with Running(None) as endless, Running() as other:
        await asyncio.gather(endless.loaded(), other.loaded())
        cut = asyncio.create_task(endless.render(chat("hi", ENDLESS)))
        for number in range(20):
            assert await other.render(chat(str(number))) == f"<s>[user] {number}"
        assert not cut.done()
        with pytest.raises(InvalidRequest):
            await cut


@pytest.mark.parametrize("source", ["{{ 'x' * 2**31 }}", "{{ [1] * 10**9 }}"])
async def test_a_template_that_fills_the_memory_is_refused(source):
    async with Running(None) as helper:
        with pytest.raises(InvalidRequest, match="1024 MiB of memory"):
            await helper.render(chat("hi", source))
        assert await helper.render(chat("hi", TEMPLATE)) == "<s>[user] hi"


async def test_a_template_that_never_compiles_is_no_template():
    async with Running("{{ 9**(9**9) }}") as helper:
        with pytest.raises(InvalidRequest, match=r"more than the 0\.8 s"):
            await helper.loaded()


async def test_a_killed_process_costs_no_chat():
    async with Running() as helper:
        await helper.loaded()
        os.kill(helper.pid, signal.SIGKILL)
        assert await helper.render(chat("hi")) == "<s>[user] hi"


async def test_a_process_that_ends_at_a_chat_is_given_it_once_more(tmp_path):
    async with Running(module=FAULTY) as helper:
        order = EXITS_ONCE + str(tmp_path / "exited")
        assert await helper.render(chat(order)) == f"<s>[user] {order}"


@pytest.mark.parametrize("order", [EXITS, BABBLES])
async def test_a_chat_that_ends_the_process_each_time_is_refused_alone(order):
    async with Running(module=FAULTY) as helper:
        results = await asyncio.gather(
            helper.render(chat("before")), helper.render(chat(order)), helper.render(chat("after")),
            return_exceptions=True,
        )  # fmt: skip
        assert results[0] == "<s>[user] before"
        assert isinstance(results[1], InvalidRequest)
        assert results[2] == "<s>[user] after"


async def test_a_stopped_process_is_replaced_and_its_chat_may_be_sent_again():
    async with Running(module=FAULTY, wall_limit_s=0.3) as helper:
        await helper.loaded()
        with pytest.raises(Overloaded, match=r"0\.3 s"):
            await helper.render(chat(STOPS))
        assert await helper.render(chat("hi")) == "<s>[user] hi"


async def test_a_process_that_has_no_successor_answers_nobody_else(monkeypatch):
    async with Running(module=FAULTY, wall_limit_s=0.3) as helper:
        await helper.loaded()
        former = helper.pid
        with monkeypatch.context() as patch:
            patch.setattr(helper_module, "TemplateChild", start_none)
            with pytest.raises(Overloaded):
                await helper.render(chat(STOPS))
            assert helper.pid is None
            assert not is_alive(former)
            with pytest.raises(EngineError, match="No process can be started"):
                await helper.render(chat("hi"))
        assert await helper.render(chat("hi")) == "<s>[user] hi"


async def test_the_process_that_a_template_ended_is_told_of_though_no_other_starts(monkeypatch):
    async with Running(None) as helper:
        await helper.loaded()
        monkeypatch.setattr(helper_module, "TemplateChild", start_none)
        with pytest.raises(InvalidRequest, match=r"more than the 0\.8 s"):
            await helper.render(chat("hi", ENDLESS))


def start_none(*_args: object, **_options: object) -> None:
    raise OSError(errno.EAGAIN, "Resource temporarily unavailable")


@pytest.mark.parametrize(
    ("limit", "value", "size"), [("MAX_WAITING_CHATS", 3, 1), ("MAX_WAITING_BYTES", 3_000_000, 1_000_000)]
)
async def test_chats_that_wait_are_bounded(monkeypatch, limit, value, size):
    monkeypatch.setattr(helper_module, limit, value)
    async with Running() as helper:
        await helper.loaded()
        waiting = [asyncio.create_task(helper.render(chat("x" * size))) for _ in range(4)]
        results = await asyncio.gather(*waiting, return_exceptions=True)
        refused = [result for result in results if not isinstance(result, str)]
        assert refused
        assert all(isinstance(error, Overloaded) for error in refused)
        assert results[0] == "<s>[user] " + "x" * size
        assert await helper.render(chat("hi")) == "<s>[user] hi", "those that are answered make room"


async def test_chats_that_nobody_waits_for_any_more_take_no_room(monkeypatch):
    monkeypatch.setattr(helper_module, "MAX_WAITING_CHATS", 3)
    async with Running() as helper:
        for _ in range(5):
            left = asyncio.create_task(helper.render(chat("left")))
            await asyncio.sleep(0)
            left.cancel()
            await asyncio.gather(left, return_exceptions=True)
        assert await helper.render(chat("hi")) == "<s>[user] hi"


async def test_a_process_that_is_closed_at_its_work_says_nothing(capfd):
    async with Running(None) as helper:
        await helper.loaded()
        rendering = asyncio.create_task(helper.render(chat("hi", "{% for a in range(99999) %}{{ a }}{% endfor %}")))
        await asyncio.sleep(0)
        helper._child._pair.close()
        await asyncio.gather(rendering, return_exceptions=True)
    assert "Traceback" not in capfd.readouterr().err


async def test_a_chat_that_nobody_waits_for_any_more_confuses_no_other():
    async with Running() as helper:
        left = [asyncio.create_task(helper.render(chat(f"left {number}"))) for number in range(3)]
        await asyncio.sleep(0)
        for task in left:
            task.cancel()
        assert await helper.render(chat("hi")) == "<s>[user] hi"


async def test_who_waits_when_it_closes_is_told():
    async with Running(None) as helper:
        waiting = asyncio.create_task(helper.render(chat("hi", ENDLESS)))
        await asyncio.sleep(0)
    with pytest.raises(EngineError, match="shutting down"):
        await waiting
    with pytest.raises(EngineError, match="shutting down"):
        await helper.render(chat("hi"))


PARENT = f"""
import asyncio
from pagewire.frontend.templates.helper import TemplateHelper
from pagewire.frontend.templates.jobs import LoadTemplate, RenderChat

async def main():
    helper = TemplateHelper(LoadTemplate(source=None, special_tokens={{}}), name="templates")
    await helper.loaded()
    print(helper.pid, flush=True)
    chat = RenderChat(messages=[{{"role": "user", "content": "x"}}], source={ENDLESS!r})
    while True:
        await asyncio.gather(helper.render(chat), return_exceptions=True)

asyncio.run(main())
"""


def test_a_killed_frontend_leaves_no_process_even_one_that_computes():
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert parent.stdout is not None
    with parent.stdout:
        pid = int(parent.stdout.readline())
        parent.kill()
        parent.wait()
    wait_until(lambda: not is_alive(pid), 2, "the end of the helper process")


def test_started_by_hand_it_says_what_to_run_instead():
    done = subprocess.run(
        [sys.executable, "-m", MODULE], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "pagewire serve" in done.stderr
