"""Prompts that are cut, and what of them is tokenized for that."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagewire.frontend.openai.bodies.schema import CompletionRequest
from pagewire.frontend.openai.truncation import Side, Truncation, truncation_of
from pagewire.ipc.errors import InvalidRequest


@given(st.lists(st.integers()), st.integers(1, 10), st.sampled_from(["left", "right"]))
def test_a_cut_keeps_one_end(token_ids, count, side: Side):
    kept = Truncation(count, side).cut(token_ids)
    assert len(kept) == min(count, len(token_ids))
    assert kept == (token_ids[len(token_ids) - len(kept) :] if side == "left" else token_ids[: len(kept)])


@pytest.mark.parametrize("side", ["left", "right"])
def test_of_a_huge_text_no_more_is_tokenized_than_decides(side):
    text = "".join(chr(97 + index % 26) for index in range(1_000_000))
    cut = Truncation(10, side).cut_text(text)
    assert len(cut) == 26 * 256
    assert text.endswith(cut) if side == "left" else text.startswith(cut)
    assert Truncation(10, side).cut_text("short") == "short"


def test_what_is_not_given_falls_to_the_endpoint():
    body = CompletionRequest(truncate_prompt_tokens=-1)
    assert truncation_of(body, most=7, default_side="left") == Truncation(7, "left")
    body = CompletionRequest(truncate_prompt_tokens=3, truncation_side="right")
    assert truncation_of(body, most=7, default_side="left") == Truncation(3, "right")
    assert truncation_of(CompletionRequest(), most=7, default_side="left") is None
    for count in (0, 8, -2):
        with pytest.raises(InvalidRequest, match="from 1 to 7"):
            truncation_of(CompletionRequest(truncate_prompt_tokens=count), most=7, default_side="left")
