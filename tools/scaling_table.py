"""Write the tables of docs/scaling.md: `python -m tools.scaling_table`. A test keeps them so.

Each row is what `pagewire estimate` answers for that placement.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from pagewire.checkpoint.estimate.answer import DeviceAnswer, answer
from pagewire.checkpoint.placement import Placement
from pagewire.frontend.estimate.config import EstimateConfig
from pagewire.frontend.estimate.question import make_question
from tools.file_sizes import ROOT

DOCUMENT = ROOT / "docs" / "scaling.md"
BEGIN, END = "<!-- scaling: begin (made by python -m tools.scaling_table) -->", "<!-- scaling: end -->"
_HEADER = (
    "| device | weights | tp x pp | requests that fit | 1 request: ITL ms | tok/s | 64 requests: ITL ms | tok/s | "
    "at most | bound by |\n|---|---|---|---|---|---|---|---|---|---|"
)
_CASES = (
    (
        "llama-3.1-70b",
        ("h100", "h200"),
        (Placement(tp=2), Placement(tp=4), Placement(tp=8), Placement(tp=2, pp=2), Placement(tp=4, pp=2)),
        ("bfloat16", "fp8"),
    ),
    (
        "llama-3.1-405b",
        ("h100", "h200"),
        (Placement(tp=8), Placement(tp=8, pp=2), Placement(tp=16)),
        ("bfloat16", "fp8"),
    ),
)


def tables() -> str:
    """Return one Markdown table a model."""
    parts = []
    for model, devices, placements, weights in _CASES:
        rows = "\n".join(
            _row(model, device, placement, bits) for device in devices for bits in weights for placement in placements
        )
        parts.append(f"**{model}**, 4,096 tokens a request\n\n{_HEADER}\n{rows}\n")
    return "\n".join(parts)


def with_tables(text: str) -> str:
    """Return the document with its tables current."""
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    return f"{head}{begin}\n{tables()}\n{end}{tail}"


def _row(model: str, device: str, placement: Placement, weights: str) -> str:
    config = EstimateConfig(
        gpu=device,
        tensor_parallel_size=placement.tp,
        pipeline_parallel_size=placement.pp,
        weights=weights,  # type: ignore[arg-type]  # one of the names above
    )
    asked = answer(make_question(model, config)).asked
    assert asked is not None, "a device was named"
    name = f"{placement.tp} x {placement.pp}"
    return "| " + " | ".join((device.upper(), weights, name, *_figures(asked))) + " |"


def _figures(asked: DeviceAnswer) -> Iterator[str]:
    if asked.max_requests == 0:
        yield from ("none", *["-"] * 6)
        return
    yield f"{asked.max_requests:,}"
    by_size = {decode.num_requests: decode for decode in asked.decodes}
    for size in (1, 64):
        decode = by_size.get(size)
        if decode is None:
            yield from ("-", "-")
        else:
            yield from (f"{decode.itl_ms:.1f}", f"{decode.expected_tokens_per_s:,.0f}")
    largest = asked.decodes[-1]
    yield f"{largest.expected_tokens_per_s:,.0f} of {largest.num_requests}"
    yield largest.bound_by


def main() -> int:
    """Rewrite the document."""
    DOCUMENT.write_text(with_tables(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
