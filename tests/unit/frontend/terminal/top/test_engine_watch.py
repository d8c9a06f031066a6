from __future__ import annotations

import io
import json
from typing import Any

import pytest
from rich.console import Console

from pagewire.frontend.terminal.top.engine_view import block_map, engine_rows
from pagewire.frontend.terminal.top.engine_watch import read_picture


def picture(num_output_tokens: int = 3, **changes: object) -> bytes:
    request = {
        "arrival": 7, "child": 1, "status": "running", "num_prompt_tokens": 10, "num_cached_tokens": 4,
        "num_computed_tokens": 12, "num_output_tokens": num_output_tokens, "max_output_tokens": 20, "num_blocks": 2,
    }  # fmt: skip
    view: dict[str, Any] = {
        "cells": "0123", "num_blocks": 4, "num_used_blocks": 2, "num_children": 9, "requests": [request], **changes
    }  # fmt: skip
    return json.dumps({"cores": [view, None]}).encode()


def test_a_picture_is_read_and_silent_cores_are_left_out():
    (core,) = read_picture(picture())
    assert (core.cells, core.num_used, core.num_requests) == ("0123", 2, 9)
    assert (core.requests[0].name, core.requests[0].max_output) == ("7.1", 20)


@pytest.mark.parametrize("data", [b"[]", b"{}", b"no json", b'{"cores": [{}]}'])
def test_what_is_no_picture_is_refused(data: bytes):
    with pytest.raises(ValueError, match=r"picture|JSON"):
        read_picture(data)


def test_blocks_that_share_a_character_show_the_most_telling_state():
    assert block_map("0123").plain == "·░▓█"
    assert block_map("0" * 1023 + "3").plain.replace("\n", "") == "·" * 127 + "█"
    assert block_map("").plain == ""


def test_requests_are_bars_and_the_rest_a_number():
    console = Console(file=io.StringIO(), width=120)
    for title, drawn in engine_rows(read_picture(picture())):
        console.print(title, drawn)
    text = console.file.getvalue()
    for part in ("2 of 4 used", "#7.1", "3 of 20 tokens", "and 8 more", "░░░"):
        assert part in text


def test_no_more_of_a_prompt_is_computed_than_there_is():
    ((*_, (_, drawn)),) = [engine_rows(read_picture(picture(num_output_tokens=0)))]
    console = Console(file=io.StringIO(), width=120)
    console.print(drawn)
    assert "10 of 10 prompt tokens" in console.file.getvalue()  # a step ahead, 12 are
