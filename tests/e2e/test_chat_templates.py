"""Chat templates of a running server: what a bad one, a killed helper and a bad start lead to."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.running_server import running_server
from tests.support.tiny_model import tiny_checkpoint

pytestmark = pytest.mark.slow

ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2, "temperature": 0}
PATH = "/v1/chat/completions"


def test_neither_endless_templates_nor_a_killed_helper_cost_another_chat(tmp_path: Path) -> None:
    with running_server(tmp_path, str(tiny_checkpoint()), "--trust-request-chat-template") as server:
        expected = server.post(PATH, CHAT)["choices"]
        for template in (ENDLESS, "{{ 9**(9**9) }}", "{{ 'x' * 2**31 }}"):
            started = time.monotonic()
            status, answer = server.post(PATH, {**CHAT, "chat_template": template})
            assert (status, answer["error"]["type"]) == (400, "invalid_request_error")
            assert time.monotonic() - started < 5  # a second, on a machine with nothing else to do
            assert server.post(PATH, CHAT)["choices"] == expected
        for pid in server.descendants():
            if b"pagewire.frontend.templates" in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)
        assert server.post(PATH, CHAT)["choices"] == expected
        theirs = server.post(PATH, {**CHAT, "chat_template": "{{ messages[0].content }}"})
        assert theirs["usage"]["prompt_tokens"] < server.post(PATH, CHAT)["usage"]["prompt_tokens"]


@pytest.mark.parametrize("text", ["{% for %}", "{{ 9**(9**9) }}"])
def test_a_given_template_that_is_none_is_one_line_and_exit_code_2(text: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pagewire", "serve", str(tiny_checkpoint()), "--port", "0", "--chat-template", text],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("pagewire: error:")]
    assert "chat template" in line
    assert "Traceback" not in done.stderr
