"""docs/openai-api.md names every field that a body may have."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from pagewire.frontend.openai.bodies.operations import OPERATIONS

_DOCS = Path(__file__).resolve().parents[3] / "docs"
# What is for clients: adapters and the rest of the administration have pages of their own.
_PUBLIC = [each for each in OPERATIONS if each.path.startswith(("/v1/", "/tokenize", "/detokenize"))]
_OPERATIONS = [each for each in _PUBLIC if "lora" not in each.path]
_BODIES = sorted({each.body for each in _OPERATIONS if each.body is not None}, key=lambda body: body.__name__)


@pytest.fixture(scope="module")
def page() -> str:
    return (_DOCS / "openai-api.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("body", _BODIES, ids=lambda body: body.__name__)
def test_every_field_stands_in_the_document(page, body):
    fields = [field.name for field in msgspec.structs.fields(body)]
    assert [name for name in fields if f"`{name}`" not in page] == []


def test_every_route_stands_in_the_document(page):
    paths = {each.path.replace("{model}", "{id}").replace("{response_id}", "{id}") for each in _OPERATIONS}
    assert {path for path in paths if path not in page} == set()
