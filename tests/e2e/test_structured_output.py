"""Answers are in the language that was asked for, and what can't be asked for harms nobody else."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.support.running_server import RunningServer, running_server
from tests.support.tiny_model import tiny_checkpoint
from tools.grammar_schemas import LONG, SCHEMAS

pytestmark = pytest.mark.slow

CYCLE = {"$ref": "#/$defs/n", "$defs": {"n": {"$ref": "#/$defs/n"}}}


def complete(server: RunningServer, *, seed: int = 0, max_tokens: int = 200, **asked: Any) -> Any:
    body = {"prompt": "Some data:\n", "max_tokens": max_tokens, "seed": seed, "temperature": 1}
    return server.post("/v1/completions", {**body, "structured_outputs": asked})


def text_of(answer: Any) -> str:
    (choice,) = answer["choices"]
    assert choice["finish_reason"] == "stop"
    return choice["text"]


@pytest.mark.parametrize(
    ("asked", "defect"),
    [
        ({"json": {"properties": {"foo": "bar"}}}, "object or boolean"),
        ({"json": CYCLE}, "ends"),
        ({"regex": "["}, "unclosed"),
        ({"regex": "(?=a)b"}, "look-"),
        ({"grammar": "root ::= "}, "empty"),
        ({"choice": []}, "choice"),
        ({"json": "[" * 100_000}, "JSON"),
    ],
)
def test_nonsense_is_a_400_that_names_the_defect_while_others_are_answered(smollm2, asked, defect):
    with ThreadPoolExecutor(1) as threads:
        body = {"prompt": "Rome is", "max_tokens": 24, "ignore_eos": True}
        other = threads.submit(smollm2.post, "/v1/completions", body)
        status, document = complete(smollm2, **asked)
    assert status == 400
    assert defect in document["error"]["message"]
    assert other.result()["usage"]["completion_tokens"] == 24


def test_documents_of_every_schema_are_valid(smollm2):
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda item: complete(smollm2, json=item.schema, max_tokens=300, seed=1), SCHEMAS))
    num_whole = 0
    for item, answer in zip(SCHEMAS, answers, strict=True):
        (choice,) = answer["choices"]
        if choice["finish_reason"] == "stop":
            num_whole += 1
            jsonschema.validate(json.loads(choice["text"]), item.schema)
    assert num_whole >= 0.7 * len(SCHEMAS), "a model that likes long lists is cut by length, seldom"


def test_objects_that_stop_are_whole_whatever_the_end_tokens(smollm2):
    with ThreadPoolExecutor(8) as threads:
        answers = list(
            threads.map(lambda seed: complete(smollm2, json_object=True, seed=seed, max_tokens=60), range(16))
        )
    for answer in answers:
        (choice,) = answer["choices"]
        assert "\n" not in choice["text"].lstrip("{")  # no blank lines for ever
        if choice["finish_reason"] == "stop":
            assert isinstance(json.loads(choice["text"]), dict)


@pytest.mark.parametrize("seed", range(3))
def test_other_alphabets_come_as_they_were_sent(smollm2, seed):
    states = ["在线", "Sjöfart", "😀"]
    assert json.loads(text_of(complete(smollm2, json={"enum": states}, seed=seed))) in states
    assert text_of(complete(smollm2, choice=["é", "日本"], seed=seed)) in ("é", "日本")


def test_streamed_pieces_are_the_whole_answer(smollm2):
    asked = {"json": SCHEMAS[12].schema}
    whole = complete(smollm2, seed=5, **asked)["choices"][0]["text"]
    body = {"prompt": "Some data:\n", "max_tokens": 200, "seed": 5, "temperature": 1, "structured_outputs": asked}
    assert "".join(stream(smollm2, body)) == whole


def test_grammar_that_takes_too_much_is_refused_in_time_while_another_request_streams(smollm2):
    heavy = {"json": {"type": "integer", "multipleOf": 99_999_989}}  # an automaton with a state a remainder
    body = {"prompt": "Count: 1, 2,", "max_tokens": 150, "ignore_eos": True, "temperature": 0}
    gaps: list[float] = []

    def read() -> None:
        last = time.monotonic()
        for _ in stream(smollm2, body):
            gaps.append(time.monotonic() - last)
            last = time.monotonic()

    reader = threading.Thread(target=read)
    reader.start()
    started = time.monotonic()
    status, document = complete(smollm2, max_tokens=5, **heavy)
    took_s = time.monotonic() - started
    reader.join()
    assert status == 400
    assert "compiling it takes more than" in document["error"]["message"]
    assert took_s < 60
    assert len(gaps) > 100
    assert max(gaps) < 3


def test_streams_by_grammar_go_on_with_their_tokens_after_deaths(tmp_path: Path):
    body = {"prompt": "List:\n", "max_tokens": 150, "temperature": 1, "seed": 3, "structured_outputs": {"json": LONG}}
    with running_server(tmp_path, "--max-model-len", "512") as server:
        alone = "".join(stream(server, body))
        for module in ("pagewire.gpu_executor", "pagewire.engine_core"):
            pieces: list[str] = []
            for piece in stream(server, body):
                pieces.append(piece)
                if len(pieces) == 20:
                    os.kill(server.process_of(module), signal.SIGKILL)
            assert "".join(pieces) == alone


def test_server_without_grammars_says_so_and_lives(tmp_path: Path):
    with running_server(tmp_path, str(tiny_checkpoint("llama")), "--structured-outputs-backend", "none") as server:
        status, document = complete(server, json_object=True)
        assert status == 400
        assert "disabled" in document["error"]["message"]
        assert server.post("/v1/completions", {"prompt": [5, 6], "max_tokens": 3})["choices"]


def stream(server: RunningServer, body: dict[str, Any]) -> Iterator[str]:
    """Yield the pieces of a streamed completion."""
    request = urllib.request.Request(
        server.url + "/v1/completions",
        json.dumps({**body, "stream": True}).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=120) as response:
        for line in response:
            if line.startswith(b"data: {"):
                for choice in json.loads(line[6:])["choices"]:
                    yield choice["text"]
