"""Flags that vLLM's users bring, at a real server: what they promise is what requests see."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.running_server import RunningServer, running_server
from tests.support.tiny_model import tiny_checkpoint

pytestmark = pytest.mark.slow

TEMPLATE = "{{ greeting }}{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}"
CHAT = {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}], "max_tokens": 4}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    flags = [
        "--root-path", "/llm", "--response-role", "helper", "--override-generation-config.temperature", "0",
        "--override-generation-config.max_new_tokens=3", "--default-chat-template-kwargs", '{"greeting": "Hello! "}',
        "--chat-template", TEMPLATE, "--chat-template-content-format", "openai", "--disable-fastapi-docs",
        "--long-prefill-token-threshold", "16", "--sse-keep-alive-interval", "0", "--swap-space", "4", "-O2",
        "--trust-remote-code", "--enable-chunked-prefill", "--compilation-config", '{"level": 3}', "--max-log-len", "9",
        "--max-num-queued-reqs", "100", "--disable-prefix-caching",
    ]  # fmt: skip
    directory: Path = tmp_path_factory.mktemp("flags")
    with running_server(directory, str(tiny_checkpoint("llama")), "--served-model-name", "a", "b", *flags) as running:
        yield running


def test_paths_are_answered_below_the_root_path(server: RunningServer) -> None:
    assert [model["id"] for model in server.get("/llm/v1/models")["data"]] == ["a", "b"]
    assert server.get("/v1/models") == server.get("/llm/v1/models")


def test_defaults_stand_in_for_what_requests_leave_out(server: RunningServer) -> None:
    body = {key: value for key, value in CHAT.items() if key != "max_tokens"}
    first, second = (server.post("/llm/v1/chat/completions", body) for _ in range(2))
    assert first["choices"] == second["choices"], "temperature 0"
    assert first["usage"]["completion_tokens"] <= 3
    assert first["choices"][0]["message"]["role"] == "helper"


def test_template_gets_its_variables_and_its_form_of_content(server: RunningServer) -> None:
    tokens = server.post("/tokenize", {"messages": CHAT["messages"], "add_generation_prompt": False})["tokens"]
    text = server.post("/detokenize", {"tokens": tokens})["prompt"]
    assert text == "Hello! user: [{'type': 'text', 'text': 'hi'}]"
    own = server.post("/tokenize", {"messages": CHAT["messages"], "chat_template_kwargs": {"greeting": "Bye! "}})
    assert server.post("/detokenize", {"tokens": own["tokens"]})["prompt"].startswith("Bye! ")


def test_long_prompt_is_prefilled_in_pieces_with_the_same_answer(server: RunningServer) -> None:
    answer = server.post("/v1/completions", {"prompt": [5] * 100, "max_tokens": 4, "ignore_eos": True})
    assert answer["usage"]["prompt_tokens"] == 100
    again = server.post("/v1/completions", {"prompt": [5] * 100, "max_tokens": 4, "ignore_eos": True})
    assert answer["choices"] == again["choices"]


def test_each_flag_without_a_meaning_has_its_line(server: RunningServer) -> None:
    for flag in ("--swap-space", "-O2", "--trust-remote-code", "--enable-chunked-prefill", "--compilation-config",
                 "--max-log-len"):  # fmt: skip
        assert server.log.count(f"pagewire: {flag} has no meaning here: ") == 1
