"""After a load over all endpoints, the counters of /metrics are the sums of the usages.

Without stop strings: a step that was under way when one was found may have drawn a token that no usage counts.
"""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.support.running_server import RunningServer

pytestmark = pytest.mark.slow

MESSAGES = [{"role": "user", "content": "Count from one to twenty, in words, and then tell me what follows."}]


def post(server: RunningServer, path: str, **body: Any) -> Any:
    request = urllib.request.Request(server.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as response:
        text = response.read().decode()
    if not body.get("stream"):
        return json.loads(text)
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    return next(event for event in reversed(events) if event.get("usage"))


def counters(server: RunningServer) -> dict[str, float]:
    with urllib.request.urlopen(server.url + "/metrics", timeout=30) as response:
        text = response.read().decode()
    names = ("prompt_tokens_total", "generation_tokens_total", "prompt_tokens_cached_total")
    found = {name: re.findall(rf"^vllm:{name}{{.*}} (.*)$", text, re.MULTILINE) for name in names}
    return {name: sum(map(float, values)) for name, values in found.items()}


def openai_usage(body: Any) -> tuple[int, int, int]:
    usage = body["usage"]
    return usage["prompt_tokens"], usage["completion_tokens"], usage["prompt_tokens_details"]["cached_tokens"]


def responses_usage(body: Any) -> tuple[int, int, int]:
    usage = body["usage"]
    return usage["input_tokens"], usage["output_tokens"], usage["input_tokens_details"]["cached_tokens"]


def messages_usage(body: Any) -> tuple[int, int, int]:
    usage = body["usage"]
    num_cached = usage["cache_read_input_tokens"]
    return usage["input_tokens"] + num_cached, usage["output_tokens"], num_cached


def test_counters_are_the_sums_of_usages(smollm2: RunningServer) -> None:
    def chat(**fields: Any) -> tuple[int, int, int]:
        return openai_usage(post(smollm2, "/v1/chat/completions", messages=MESSAGES, max_tokens=24, **fields))

    def complete(**fields: Any) -> tuple[int, int, int]:
        return openai_usage(post(smollm2, "/v1/completions", **{"prompt": ["One, two,", "A, b, c,"], **fields}))

    streamed = {"stream": True, "stream_options": {"include_usage": True}}
    load: list[Callable[[], tuple[int, int, int]]] = [
        chat,
        lambda: chat(n=3, temperature=1, seed=1),
        lambda: chat(**streamed),
        lambda: complete(best_of=3, temperature=1, seed=2),
        lambda: complete(temperature=0, **streamed),
        lambda: complete(prompt="x " * 300, max_tokens=3),
        lambda: responses_usage(post(smollm2, "/v1/responses", input="Hello!", max_output_tokens=20)),
        lambda: messages_usage(post(smollm2, "/v1/messages", messages=MESSAGES, max_tokens=20)),
    ]
    before = counters(smollm2)
    with ThreadPoolExecutor(6) as pool:
        usages = list(pool.map(lambda ask: ask(), load * 2))
    after = counters(smollm2)
    prompt, output, cached = (sum(column) for column in zip(*usages, strict=True))
    grown = {name: after[name] - before[name] for name in after}
    assert grown == {
        "prompt_tokens_total": prompt,
        "generation_tokens_total": output,
        "prompt_tokens_cached_total": cached,
    }
