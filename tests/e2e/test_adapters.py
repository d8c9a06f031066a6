"""LoRA adapters over HTTP: asked for by name, loaded and unloaded while streams run, and there again after a death."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.running_server import RunningServer, running_server
from tests.support.tiny_model import tiny_checkpoint
from tests.support.token_streams import TokenStream, read_alone, read_disturbed
from tools.processes import processes_below
from tools.tiny_model.lora_writer import write_adapter
from tools.tiny_model.spec import TinyModelSpec

pytestmark = pytest.mark.slow

SPEC = TinyModelSpec(family="llama", max_position=2048)
PROMPT = [11 + index for index in range(40)]


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("adapters")
    for index in range(4):
        write_adapter(SPEC, directory / f"a{index}", seed=index, rank=4 + index)
    write_adapter(SPEC, directory / "high", rank=32)
    return directory


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, adapters: Path) -> Iterator[RunningServer]:
    arguments = [
        str(tiny_checkpoint("llama", max_position=2048)),
        "--served-model-name", "tiny", "--enable-lora", "--max-loras", "3", "--allow-runtime-lora-updating",
        "--lora-modules", f"a0={adapters / 'a0'}",
        "--lora-modules", json.dumps({"name": "a1", "path": str(adapters / "a1"), "base_model_name": "tiny-base"}),
    ]  # fmt: skip
    with running_server(tmp_path_factory.mktemp("server"), *arguments) as server:
        yield server


def complete(server: RunningServer, model: str, prompt: list[int] = PROMPT, **options: Any) -> Any:
    body = {"model": model, "prompt": prompt, "max_tokens": 8, "temperature": 0, "logprobs": 2}
    return server.post("/v1/completions", {**body, "return_token_ids": True, **options})


def change(server: RunningServer, route: str, **body: object) -> tuple[int, str]:
    """Return the status and the text of an answer that is no JSON where it succeeds."""
    try:
        answer = server.post(f"/v1/{route}_lora_adapter", body)
    except json.JSONDecodeError as exc:
        return 200, exc.doc
    status, document = answer
    return status, document["error"]["message"]


def token_ids(answer: Any) -> list[int]:
    ids: list[int] = answer["choices"][0]["token_ids"]
    return ids


def test_models_are_listed_with_the_adapters_that_change_them(server: RunningServer, adapters: Path) -> None:
    cards = {card["id"]: card for card in server.get("/v1/models")["data"]}
    assert cards["tiny"]["parent"] is None
    assert (cards["a0"]["parent"], cards["a0"]["root"]) == ("tiny", str(adapters / "a0"))
    assert cards["a1"]["parent"] == "tiny-base"
    assert server.get("/v1/models/a1")["id"] == "a1"


def test_the_model_name_picks_the_adapter_and_none_finds_blocks_of_another(server: RunningServer) -> None:
    answers = [complete(server, name) for name in ("tiny", "a0", "a1")]
    assert len({tuple(token_ids(answer)) for answer in answers}) == 3
    assert [answer["model"] for answer in answers] == ["tiny", "a0", "a1"]
    assert [answer["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in answers] == [0, 0, 0]
    again = complete(server, "a1")
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    assert again["choices"] == answers[2]["choices"]
    status, document = complete(server, "a9")
    assert status == 404
    assert document["error"]["code"] == "model_not_found"


def test_adapters_come_and_go_while_the_server_runs(server: RunningServer, adapters: Path) -> None:
    before = complete(server, "a0")
    assert change(server, "load", lora_name="late", lora_path=str(adapters / "a2"))[0] == 200
    answer = complete(server, "late")
    assert token_ids(answer) not in ([], token_ids(before))
    status, text = change(server, "load", lora_name="late", lora_path=str(adapters / "a2"))
    assert (status, "already been loaded" in text) == (400, True)
    status, text = change(server, "load", lora_name="more", lora_path=str(adapters / "a3"))
    assert (status, "--max-loras" in text) == (400, True)
    assert change(server, "unload", lora_name="late")[0] == 200
    assert complete(server, "late")[0] == 404
    assert change(server, "unload", lora_name="late")[0] == 404
    # Under the same name: another adapter, which finds no block of the one before.
    assert change(server, "load", lora_name="late", lora_path=str(adapters / "a3"))[0] == 200
    other = complete(server, "late")
    assert token_ids(other) != token_ids(answer)
    assert other["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert change(server, "unload", lora_name="late")[0] == 200
    assert complete(server, "a0")["choices"] == before["choices"]


def test_what_is_no_adapter_is_refused_and_nothing_else_notices(server: RunningServer, adapters: Path) -> None:
    status, text = change(server, "load", lora_name="high", lora_path=str(adapters / "high"))
    assert (status, "rank 32" in text, "--max-lora-rank 16" in text) == (400, True, True)
    status, text = change(server, "load", lora_name="none", lora_path=str(adapters / "none"))
    assert (status, "adapter_config.json" in text) == (400, True)
    assert change(server, "load", lora_name="tiny", lora_path=str(adapters / "a2"))[0] == 400
    assert complete(server, "a0")["model"] == "a0"


@pytest.mark.parametrize("module", ["pagewire.gpu_executor", "pagewire.engine_core"])
def test_streams_with_adapters_go_on_after_a_death(server: RunningServer, adapters: Path, module: str) -> None:
    assert change(server, "load", lora_name="late", lora_path=str(adapters / "a2"))[0] == 200
    try:
        bodies: list[dict[str, Any]] = [
            {"model": name, "prompt": [21, 22, 23], "max_tokens": 300, "temperature": 1, "seed": 3, "logprobs": 1}
            for name in ("tiny", "a0", "a1", "late")
        ]
        expected = asyncio.run(read_alone(server.url, bodies))

        async def strike() -> None:
            (process,) = (process for process in processes_below(server.pid) if process.module == module)
            os.kill(process.pid, signal.SIGKILL)

        def all_have_begun(streams: list[TokenStream]) -> bool:
            return all(stream.num_tokens > 20 for stream in streams)

        streams = asyncio.run(read_disturbed(server.url, bodies, when=all_have_begun, disturb=strike))
        assert [stream.answer for stream in streams] == expected
        assert [card["id"] for card in server.get("/v1/models")["data"]] == ["tiny", "a0", "a1", "late"]
    finally:
        change(server, "unload", lora_name="late")


@pytest.mark.parametrize("module", ["pagewire.gpu_executor", "pagewire.engine_core"])
def test_no_stream_goes_on_with_other_weights_of_the_same_name(
    server: RunningServer, tmp_path: Path, module: str
) -> None:
    write_adapter(SPEC, tmp_path, seed=11)
    assert change(server, "load", lora_name="late", lora_path=str(tmp_path))[0] == 200
    bodies: list[dict[str, Any]] = [
        {"model": name, "prompt": [21, 22, 23], "max_tokens": 300, "temperature": 1, "seed": 3}
        for name in ("a0", "late")
    ]
    (expected,) = asyncio.run(read_alone(server.url, bodies[:1]))

    async def strike() -> None:
        write_adapter(SPEC, tmp_path, seed=12)
        (process,) = (process for process in processes_below(server.pid) if process.module == module)
        os.kill(process.pid, signal.SIGKILL)

    def all_have_begun(streams: list[TokenStream]) -> bool:
        return all(stream.num_tokens > 20 for stream in streams)

    kept, changed = asyncio.run(read_disturbed(server.url, bodies, when=all_have_begun, disturb=strike))
    assert kept.answer == expected
    assert changed.error is not None
    assert "not the ones that it was loaded from" in changed.error["message"]
    assert [card["id"] for card in server.get("/v1/models")["data"]] == ["tiny", "a0", "a1"]


def test_without_the_flag_nothing_is_loaded_over_http(tiny: RunningServer, adapters: Path) -> None:
    status, text = change(tiny, "load", lora_name="a0", lora_path=str(adapters / "a0"))
    assert (status, "--allow-runtime-lora-updating" in text) == (404, True)
