"""A filled template is what encoding the whole event gives."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from pagewire.frontend.openai.bodies.json_body import encode_json
from pagewire.frontend.openai.event_template import EventTemplate


def write(text: str) -> bytes:
    return b"data: " + encode_json({"id": 'cmpl-"1"', "choices": [{"text": text, "logprobs": None}]}) + b"\n\n"


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_filled_template_is_the_event_of_that_text(text):
    filled = EventTemplate(write).fill(text)
    assert filled == write(text)
    assert json.loads(filled.removeprefix(b"data: "))["choices"][0]["text"] == text
