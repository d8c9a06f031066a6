"""The table of docs/observability.md, made from the families that a server builds: `python -m tools.metrics_table`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from prometheus_client.core import Metric

from pagewire.frontend.http.metric_families import FRONTEND_STATES
from pagewire.frontend.http.metric_help import HELP
from pagewire.frontend.http.metrics import Metrics
from pagewire.ipc.adapters import Adapter
from pagewire.ipc.outputs import EngineInfo

PAGE = Path(__file__).resolve().parents[1] / "docs" / "observability.md"
_BEGIN, _END = "<!-- metrics: python -m tools.metrics_table -->\n", "<!-- end of metrics -->\n"
_EVERYWHERE = frozenset({"model_name", "engine", "le"})


def all_families() -> list[Metric]:
    """Return every family of the server's own that there can be."""
    info = EngineInfo(
        model="m", model_path="", served_model_names=("m",), max_model_len=1024, vocab_size=1, eos_token_ids=(),
        bos_token_id=None, max_logprobs=0, block_size=16, num_blocks=1, device="cpu", dtype="", kv_cache_dtype="",
        scheduling_policy="", max_num_seqs=1, max_num_batched_tokens=1, enable_prefix_caching=True,
        num_speculative_tokens=1, has_adapters=True,
    )  # fmt: skip
    metrics = Metrics("m", info, adapters=lambda: (Adapter(name="a", load_id=1, path=""),))
    metrics.http_done("/", "GET", 200, 0.0)
    frontends = Metric("pagewire_frontends", HELP["frontends"], "gauge")
    for state in FRONTEND_STATES:
        frontends.add_sample(frontends.name, {"state": state}, 0)
    return [*metrics.collect(), frontends]


def exported_name(family: Metric) -> str:
    """Return the name that a family's samples bear, without the endings of a histogram's."""
    return f"{family.name}_total" if family.type == "counter" else family.name


def table() -> str:
    """Return the table, a row a family."""
    return "\n".join(["| name | kind | labels | what it says |", "|---|---|---|---|", *map(_row, _sorted())]) + "\n"


def page_with_table(page: str) -> str:
    """Return the document with the table of today in its place."""
    before, rest = page.split(_BEGIN)
    _, after = rest.split(_END)
    return f"{before}{_BEGIN}\n{table()}\n{_END}{after}"


def _sorted() -> Iterator[Metric]:
    yield from sorted(all_families(), key=lambda family: family.name)


def _row(family: Metric) -> str:
    labels: dict[str, list[str]] = {}
    for sample in family.samples:
        for label, value in sample.labels.items():
            if label not in _EVERYWHERE and value not in labels.setdefault(label, []):
                labels[label].append(value)
    described = ", ".join(map(_label, labels.items()))
    return f"| `{exported_name(family)}` | {family.type} | {described} | {family.documentation} |"


def _label(item: tuple[str, list[str]]) -> str:
    name, values = item
    return f"`{name}`: {', '.join(values)}" if len(values) > 1 else f"`{name}`"


def main() -> int:
    """Write the table into the page, or with --check say whether it stands there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if the page is out of date")
    arguments = parser.parse_args()
    page = PAGE.read_text(encoding="utf-8")
    wanted = page_with_table(page)
    if arguments.check:
        return int(page != wanted)
    PAGE.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
