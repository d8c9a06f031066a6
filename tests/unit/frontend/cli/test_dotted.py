from __future__ import annotations

import json

import click
import pytest

from pagewire.frontend.cli.dotted import join_dotted


def join(*args: str) -> tuple[dict[str, object], list[str]]:
    flag, value, *rest = join_dotted(args, {"--spec", "--spec-more"})
    assert flag == "--spec"
    return json.loads(value), rest


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["--spec.method", "ngram"], {"method": "ngram"}),
        (["--spec.num-tokens=4"], {"num_tokens": 4}),
        (["--spec.a.b", "1", "--spec.a.c", "true"], {"a": {"b": 1, "c": True}}),
        (["--spec", '{"a": 1, "b": 2}', "--spec.b", "3"], {"a": 1, "b": 3}),
        (["--spec.b", "3", '--spec={"a": 1, "b": 2}'], {"a": 1, "b": 3}),
        (["--spec.list", "[1, 2]"], {"list": [1, 2]}),
    ],
)
def test_parts_make_one_object(args: list[str], expected: dict[str, object]):
    assert join("m", *args, "--port", "1") == (expected, ["m", "--port", "1"])


def test_only_json_flags_have_parts():
    args = ["--port.x", "1", "--spec", "{}", "--", "--spec.a", "1"]
    assert join_dotted(args, {"--spec"}) == args


@pytest.mark.parametrize(
    "args", [["--spec.a"], ["--spec.a", "1", "--spec.a.b", "2"], ["--spec", "no", "--spec.a", "1"]]
)
def test_part_without_a_place_or_a_value_is_refused(args: list[str]):
    with pytest.raises(click.UsageError):
        join_dotted(args, {"--spec"})
