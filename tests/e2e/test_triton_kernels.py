"""The whole engine on the GPU's kernels, interpreted: its own processes, its own way of drawing, the same greedy text.

A GPU compiles the same kernels, and launches steps ahead in the same way; what it adds are graphs and speed.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.running_server import RunningServer, running_server
from tests.support.tiny_model import tiny_checkpoint

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed"),
]

HEAD = "Once upon a time there was a small engine. "
PROMPTS = [
    "Hello",
    HEAD,  # longer than a step: prefilled in chunks
    HEAD + "One day",  # shares blocks with the one before
]
# Blocks and steps of a few tokens: prompts are cut and blocks are shared, though they are short enough to interpret.
SMALL = ("--max-model-len", "256", "--block-size", "16", "--max-num-batched-tokens", "24", "--max-num-seqs", "2")
# A step that is interpreted takes a second, and many where others use the machine as well.
PATIENT = ("--stall-limit", "600")


@contextmanager
def serving(directory: Path, *arguments: str) -> Iterator[RunningServer]:
    directory.mkdir()
    model = (str(tiny_checkpoint("llama", num_layers=1)), "--served-model-name", "tiny")
    with running_server(directory, *model, "--device", "cpu", *SMALL, *PATIENT, *arguments) as server:
        yield server


def complete(server: RunningServer, prompt: str, **options: Any) -> Any:
    body = {"model": "tiny", "prompt": prompt, "max_tokens": 3, "temperature": 0, "ignore_eos": True, **options}
    return server.post("/v1/completions", body)


def texts(server: RunningServer, prompts: list[str] = PROMPTS, **options: Any) -> list[list[str]]:
    """All prompts at once, more of them than run at a time."""
    with ThreadPoolExecutor(len(prompts)) as pool:
        answers = list(pool.map(lambda prompt: complete(server, prompt, **options), prompts))
    return [[choice["text"] for choice in answer["choices"]] for answer in answers]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with serving(tmp_path_factory.mktemp("reference") / "server", "--kernels", "reference") as server:
        yield server


@pytest.fixture(scope="module")
def triton(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    arguments = ("--kernels", "triton", "--attention-backend", "triton", "--batch-invariant", "--enforce-eager")
    with serving(tmp_path_factory.mktemp("triton") / "server", *arguments) as server:
        yield server


def test_greedy_text_is_that_of_the_reference(triton: RunningServer, reference: RunningServer) -> None:
    assert texts(triton) == texts(reference)
    assert "interpreted" in triton.log


def test_seeded_draws_and_penalties_are_those_of_the_reference(triton: RunningServer, reference: RunningServer) -> None:
    options = {"max_tokens": 2, "temperature": 0.8, "top_p": 0.95, "seed": 7, "n": 2, "frequency_penalty": 0.5}
    assert texts(triton, PROMPTS[:2], **options) == texts(reference, PROMPTS[:2], **options)


def test_logprobs_are_close_to_those_of_the_reference(triton: RunningServer, reference: RunningServer) -> None:
    options = {"logprobs": 3, "echo": True, "max_tokens": 2}
    found, expected = (complete(server, "Hello", **options)["choices"][0]["logprobs"] for server in (triton, reference))
    assert found["tokens"] == expected["tokens"]
    assert found["token_logprobs"][1:] == pytest.approx(expected["token_logprobs"][1:], abs=0.02)


def test_an_8_bit_cache_is_that_of_the_reference(tmp_path: Path) -> None:
    answers = []
    for kernels in ("triton", "reference"):
        with serving(tmp_path / kernels, "--kernels", kernels, "--kv-cache-dtype", "fp8") as server:
            answers.append(texts(server, PROMPTS[:2]))
            assert "fp8_e4m3" in server.log
    assert answers[0] == answers[1]
