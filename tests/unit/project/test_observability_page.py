"""docs/observability.md names every metric that there is, and no other."""

from __future__ import annotations

import re

from tools.metrics_table import PAGE, all_families, exported_name, page_with_table

_ENDINGS = re.compile(r"_(bucket|sum|count)$")


def test_table_is_that_of_today():
    page = PAGE.read_text(encoding="utf-8")
    assert page == page_with_table(page), "run python -m tools.metrics_table"


def test_expressions_use_metrics_that_there_are():
    names = {exported_name(family) for family in all_families()}
    used = set(re.findall(r"(?:vllm:|pagewire[:_]|http_request)\w+", PAGE.read_text(encoding="utf-8")))
    assert {name for name in used if _ENDINGS.sub("", name) not in names} == set()
