"""Asks, answers, prints."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from pagewire.checkpoint.estimate.answer import Answer, answer

from .config import EstimateConfig
from .question import make_question
from .report import report_lines

Say = Callable[[str], None]

DOES_NOT_FIT = 1


def run(model: str, config: EstimateConfig, say: Say) -> int:
    """Print the answers; return the exit code: 1 if what was asked does not fit on the named devices.

    Raises:
        ConfigError: the question can't be answered.
    """
    found = answer(make_question(model, config))
    if config.json:
        say(msgspec.json.format(msgspec.json.encode(_document(found)), indent=2).decode())
    else:
        for line in report_lines(found):
            say(line)
    return DOES_NOT_FIT if found.asked is not None and not found.asked.fits else 0


def _document(found: Answer) -> dict[str, object]:
    """Return what is printed as JSON: the answers, with the question in its flags' terms."""
    question = found.question
    served = question.served
    document: dict[str, object] = msgspec.to_builtins(found)
    document["question"] = {
        "model": question.name,
        "architecture": served.model.architecture,
        "gpu": None if question.device is None else question.device.name,
        "tensor_parallel_size": question.placement.tp,
        "pipeline_parallel_size": question.placement.pp,
        "weights": served.bits.name,
        "kv_cache_dtype": served.kv.name,
        "context_len": question.context,
        "output_len": question.output_tokens,
        "num_requests": question.num_requests,
        "gpu_memory_utilization": served.utilization,
        "efficiency": question.share,
    }
    return document
