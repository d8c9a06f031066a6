"""`stream_interval`: chunks that wait for each other, and lose nothing by it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pagewire.frontend.openai.grouped_chunks import GroupedChunks
from pagewire.frontend.text.generation import TextChunk


def chunk(index: int, first: int, count: int, *, is_last: bool = False) -> TextChunk:
    token_ids = list(range(first, first + count))
    return TextChunk(
        index=index,
        text="".join(chr(97 + token_id % 26) for token_id in token_ids),
        token_ids=token_ids,
        logprobs=[],
        finish_reason="stop" if is_last else None,
        stop_reason=None,
        num_output_tokens=first + count,
    )


@given(st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=10), min_size=1, max_size=3), st.integers(1, 6))
def test_nothing_is_lost_and_all_but_the_ends_hold_the_interval(children, interval):
    grouped = GroupedChunks(interval)
    for index, counts in enumerate(children):
        passed: list[TextChunk] = []
        first = 0
        for number, count in enumerate(counts):
            made = grouped.add(chunk(index, first, count, is_last=number == len(counts) - 1))
            first += count
            if made is not None:
                passed.append(made)
        assert [token_id for each in passed for token_id in each.token_ids] == list(range(first))
        assert "".join(each.text for each in passed) == "".join(chr(97 + token_id % 26) for token_id in range(first))
        assert [each.finish_reason for each in passed] == [None] * (len(passed) - 1) + ["stop"]
        assert len(passed[0].token_ids) == counts[0], "the first is not held back"
        assert all(len(each.token_ids) >= interval for each in passed[1:-1])
