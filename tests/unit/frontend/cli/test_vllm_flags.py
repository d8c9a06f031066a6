"""Every flag of vLLM, as docs/migrating-from-vllm.md lists them: works, is taken with a line, or is refused by name."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import NamedTuple

import pytest

from pagewire.frontend.cli.main import run
from pagewire.ipc.config import EngineConfig
from pagewire.ipc.server_config import ListenConfig, ServerConfig

PAGE = Path(__file__).parents[4] / "docs" / "migrating-from-vllm.md"
ROW = re.compile(r"\| `(?P<example>-.*?)` \| (?P<outcome>works|taken|refused) \| (?P<why>.*?) ?\|")

# Those of `vllm serve`, and of older versions that start scripts still carry: each script is told of what it brings.
_NAMES = """
    model tokenizer tokenizer-mode trust-remote-code dtype seed max-model-len served-model-name revision hf-overrides
    load-format download-dir generation-config override-generation-config enforce-eager max-logprobs logprobs-mode
    model-impl runner skip-tokenizer-init enable-sleep-mode quantization block-size gpu-memory-utilization
    kv-cache-dtype kv-cache-memory-bytes num-gpu-blocks-override enable-prefix-caching prefix-caching-hash-algo
    cpu-offload-gb kv-offloading-size max-num-batched-tokens max-num-seqs enable-chunked-prefill
    long-prefill-token-threshold scheduling-policy async-scheduling stream-interval max-num-queued-reqs
    max-num-queued-tokens watermark performance-mode pipeline-parallel-size data-parallel-size enable-expert-parallel
    distributed-executor-backend nnodes node-rank master-addr master-port headless api-server-count
    disable-custom-all-reduce speculative-config spec-method spec-model spec-tokens enable-lora max-loras max-lora-rank
    max-cpu-loras lora-modules host port uds api-key ssl-certfile ssl-keyfile ssl-ca-certs ssl-cert-reqs root-path
    middleware allowed-origins allowed-methods allowed-headers allow-credentials enable-request-id-headers
    uvicorn-log-level disable-uvicorn-access-log chat-template chat-template-content-format response-role
    enable-auto-tool-choice tool-call-parser reasoning-parser default-chat-template-kwargs enable-prompt-tokens-details
    enable-force-include-usage enable-server-load-tracking sse-keep-alive-interval return-tokens-as-token-ids
    max-log-len enable-log-requests shutdown-timeout structured-outputs-config disable-log-stats otlp-traces-endpoint
    kv-cache-metrics cudagraph-metrics show-hidden-metrics-for-version compilation-config cudagraph-capture-sizes
    max-cudagraph-capture-size disable-fastapi-docs trust-request-chat-template
    swap-space disable-log-requests speculative-model num-speculative-tokens use-v2-block-manager num-scheduler-steps
    guided-decoding-backend disable-frontend-multiprocessing max-seq-len-to-capture worker-use-ray task preemption-mode
"""


class Row(NamedTuple):
    """One line of the page."""

    example: str
    outcome: str
    why: str


def rows() -> list[Row]:
    """Return the lines of all tables of flags on the page."""
    text = PAGE.read_text(encoding="utf-8")
    found = [Row(**match.groupdict()) for match in map(ROW.fullmatch, text.splitlines()) if match is not None]
    assert len(found) == sum(line.startswith("| `-") for line in text.splitlines()), (
        "a line of the page has another form"
    )
    return found


class Launcher:
    """Starts nothing."""

    def __init__(self) -> None:
        self.num_starts = 0

    def serve(self, engine_config: EngineConfig, server_config: ServerConfig) -> int:
        self.num_starts += 1
        return 0

    def run_engine(self, engine_config: EngineConfig, listen_config: ListenConfig) -> int:
        raise AssertionError("only serve is tried")


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.example)
def test_each_flag_does_what_the_page_says(row: Row, capsys: pytest.CaptureFixture[str]):
    launcher = Launcher()
    exit_code = run(["serve", "m", *shlex.split(row.example)], launcher)
    said = capsys.readouterr().err
    match row.outcome:
        case "works":
            assert (exit_code, launcher.num_starts, said) == (0, 1, "")
        case "taken":
            assert (exit_code, launcher.num_starts, said.count("\n")) == (0, 1, 1)
            assert row.why in said
        case _:
            assert (exit_code, launcher.num_starts, said.count("\n")) == (2, 0, 1)
            assert row.why in said
    assert row.outcome == "works" or row.why


def test_the_page_leaves_none_out():
    shown = {part.partition("=")[0].partition(".")[0] for row in rows() for part in row.example.split()}
    short = {"tensor-parallel-size": "-tp", "optimization-level": "-O2"}
    assert [name for name in _NAMES.split() if f"--{name}" not in shown and short.get(name) not in shown] == []
