"""`pagewire run-batch`: a file of requests, answered by a server or by an engine of the command's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from pagewire.ipc.config import EngineConfig

from ..terminal.batch.config import BatchConfig
from .chat import engine_to_start, flags_with_engine
from .command import FlagCommand
from .flags import build_config
from .model import model_argument, values_with_model
from .needless import switches, valued
from .refused import SERVING

RunBatch = Callable[[BatchConfig, EngineConfig], int]

# vLLM's.
_REFUSED = SERVING._replace(
    not_yet={**SERVING.not_yet, "enable-metrics": "a batch ends by itself; give --url of a server, which has /metrics"},
    needless={
        **SERVING.needless,
        **valued("output-tmp-dir", "answers are written as they come, and --resume goes on with them"),
        **valued("metrics-host metrics-port", "there are no metrics of a batch"),
        **switches("disable-log-requests", "requests are not logged"),
    },
)


def run_batch_command(run_batch: RunBatch | None = None) -> click.Command:
    """Return the command; `run_batch` is what it runs, that of `frontend/terminal/batch/run.py` if None."""

    def command(model_tag: str | None, **_: Any) -> int:  # Any: the flags, read from the context with their sources
        given = values_with_model(model_tag)
        config = build_config(BatchConfig, given)
        engine_config = engine_to_start(given, config.url) or EngineConfig(log_level="warning")
        if run_batch is not None:
            return run_batch(config, engine_config)
        from ..terminal.batch.run import run

        return run(config, engine_config)

    return FlagCommand(
        "run-batch", flags_with_engine(BatchConfig), {}, [model_argument()], command,
        "Answer a file of requests in OpenAI's batch format, by the server at --url or by MODEL in an engine of this "
        "command's own.",
        _REFUSED,
        examples=(
            "pagewire run-batch -i in.jsonl -o out.jsonl --model Qwen/Qwen3-0.6B",
            "pagewire run-batch -i in.jsonl -o out.jsonl --url http://host:8000 --resume",
        ),
    )  # fmt: skip
