"""What deploy/ shows and warns of are metrics that there are, under labels that they have."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry, ProcessCollector

from tools.metrics_table import all_families

DEPLOY = Path(__file__).resolve().parents[3] / "deploy"
DASHBOARD = json.loads((DEPLOY / "grafana" / "pagewire.json").read_text(encoding="utf-8"))
RULES = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text(encoding="utf-8"))["groups"][0]["rules"]
_OF_SCRAPES = {"job", "instance"}  # Prometheus' own labels


def expressions() -> list[str]:
    found: list[str] = []

    def walk(value: Any) -> None:
        if isinstance(value, dict):
            found.extend(value[key] for key in ("expr", "definition") if key in value)
            value = list(value.values())
        if isinstance(value, list):
            for item in value:
                walk(item)

    walk(DASHBOARD)
    return [*found, *(rule["expr"] for rule in RULES)]


def samples() -> dict[str, set[str]]:
    """The names of all samples, and the labels of each."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    labels: dict[str, set[str]] = {"up": set()}
    for family in [*all_families(), *registry.collect()]:
        for sample in family.samples:
            labels.setdefault(sample.name, set()).update(sample.labels)
    return labels


def test_expressions_name_samples_and_labels_that_there_are():
    known = samples()
    for expression in expressions():
        for name, selector in re.findall(
            r"\b((?:vllm:|pagewire|http_|process_)\w+(?::\w+)?)(?:\{([^}]*)\})?", expression
        ):
            assert name in known, expression
            asked = set(re.findall(r"(\w+)\s*=~?", selector))
            assert asked <= known[name] | _OF_SCRAPES, expression
    assert len(expressions()) > 40


@pytest.mark.parametrize("expression", expressions())
def test_expression_is_balanced(expression: str):
    for opening, closing in ("()", "{}", "[]"):
        assert expression.count(opening) == expression.count(closing)


def test_panels_have_places_of_their_own_and_ask_the_chosen_source():
    cells: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        own = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not own & cells, panel["title"]
        cells |= own
        assert place["x"] + place["w"] <= 24
        if panel["type"] != "row":
            assert panel["datasource"]["uid"] == "${datasource}"
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


def test_every_alert_says_what_to_do():
    for rule in RULES:
        assert set(rule["annotations"]) == {"summary", "description"}, rule["alert"]
        assert rule["labels"]["severity"] in ("warning", "critical")
