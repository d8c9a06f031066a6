"""Drafts show in no answer: by the command that checks it, and in streams whose processes are killed."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pagewire.frontend.offline.llm import LLM
from pagewire.ipc.sampling_params import SamplingParams
from tests.support.children import ROOT
from tests.support.running_server import RunningServer, running_server
from tests.support.tiny_model import tiny_checkpoint
from tests.support.token_streams import TokenStream, read_alone, read_disturbed
from tools.processes import processes_below

pytestmark = pytest.mark.slow

SUFFIX = ["--speculative-method", "suffix", "--num-speculative-tokens", "4"]
REPEATS = {"30": 60, "31": 60}  # so that there is something to guess
BODIES: list[dict[str, Any]] = [
    {"prompt": [11, 12, 13], "max_tokens": 400, "temperature": 0, "logprobs": 1, "frequency_penalty": 0.1},
    {"prompt": [21, 22] * 5, "max_tokens": 400, "temperature": 1, "seed": 5, "logprobs": 1, "logit_bias": REPEATS},
    {"prompt": [31, 32, 33], "max_tokens": 200, "temperature": 1, "seed": 6, "n": 3, "logit_bias": REPEATS},
]


@pytest.mark.parametrize(
    "flags",
    [(), ("--kernels", "reference"), ("--tensor-parallel-size", "2"), ("--pipeline-parallel-size", "2")],
    ids=["auto", "reference", "tp 2", "pp 2"],
)
def test_answers_with_drafts_are_those_without(flags: tuple[str, ...]) -> None:
    options = ["--prompts", "4", "--tokens", "32", "--batches", "1", "4", *flags]
    model = str(tiny_checkpoint("llama", max_position=2048))
    done = subprocess.run(
        [sys.executable, "-m", "tools.check_speculation", "--model", model, *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all answers are bit-identical" in done.stdout
    ways = re.findall(r"^(none|ngram|suffix) +(\d+) +8/8 ", done.stdout, re.MULTILINE)
    assert ways == [("none", "4"), ("ngram", "1"), ("ngram", "4"), ("suffix", "1"), ("suffix", "4")]


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_drafts_that_are_drawn_on_the_device_change_no_bit() -> None:
    sampling: dict[str, Any] = {"max_tokens": 8, "ignore_eos": True, "logprobs": 1}
    params = [
        SamplingParams(temperature=0.0, repetition_penalty=1.05, logit_bias={30: 40}, **sampling),
        SamplingParams(temperature=1.0, seed=3, logit_bias={30: 20, 31: 20}, **sampling),
    ]
    prompts = [{"prompt_token_ids": [5, 6, 7, 8, 5, 6, 7]}, {"prompt_token_ids": [9, 10, 11]}]
    small: dict[str, Any] = {"max_model_len": 64, "block_size": 16, "max_num_batched_tokens": 24, "max_num_seqs": 2}
    drafts: dict[str, Any] = {"speculative_method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1}
    answers, num_accepted = [], 0
    for options in ({}, drafts):
        # Interpreted kernels take seconds a step.
        llm = LLM(
            str(tiny_checkpoint("llama", num_layers=1)),
            device="cpu",
            kernels="triton",
            batch_invariant=True,
            stall_limit=600,
            **small,
            **options,
        )
        with llm:
            outputs = llm.generate(prompts, params, use_tqdm=False)
        answers.append([(output.outputs[0].token_ids, output.outputs[0].logprobs) for output in outputs])
        num_accepted += sum(output.metrics.num_accepted_tokens for output in outputs)
    assert answers[0] == answers[1]
    assert num_accepted > 0


@pytest.mark.parametrize(
    ("module", "guesser"),
    [
        ("pagewire.engine_core", "suffix"),
        ("pagewire.gpu_executor", "suffix"),
        ("pagewire.gpu_executor", "draft model"),
    ],
)
def test_streams_with_drafts_go_on_with_the_same_tokens_when_a_process_is_killed(
    tmp_path: Path, module: str, guesser: str
) -> None:
    model = str(tiny_checkpoint("llama", max_position=2048))
    with running_server(_made(tmp_path / "plain"), model) as server:
        expected = asyncio.run(read_alone(server.url, BODIES))
    # Of all draft models, the model itself is right most often.
    flags = SUFFIX if guesser == "suffix" else ["--speculative-model", model, "--num-speculative-tokens", "4"]
    with running_server(_made(tmp_path / "speculative"), model, *flags) as server:
        streams = asyncio.run(_read_killed(server, module))
        num_accepted = server.gauge("vllm:spec_decode_num_accepted_tokens_total")
    assert [stream.error for stream in streams] == [None] * len(streams)
    assert [stream.answer for stream in streams] == expected
    assert num_accepted > 0


async def _read_killed(server: RunningServer, module: str) -> list[TokenStream]:
    async def kill() -> None:
        (process,) = (process for process in processes_below(server.pid) if process.module == module)
        os.kill(process.pid, signal.SIGKILL)

    return await read_disturbed(
        server.url, BODIES, when=lambda streams: all(stream.num_tokens > 3 for stream in streams), disturb=kill
    )


def _made(directory: Path) -> Path:
    directory.mkdir()
    return directory
