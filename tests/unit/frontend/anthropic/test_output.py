"""Parts become blocks, and the events of a stream tell the same as the blocks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pagewire.frontend.answers.parts import AnswerPart, ReasoningPart, TextPart, ToolCallPart
from pagewire.frontend.anthropic import answer
from pagewire.frontend.anthropic.output import MessageOutput


def run(*parts: AnswerPart):
    output = MessageOutput()
    events = [event for part in parts for event in output.push([part])]
    return output.blocks, events + output.finish()


def call(index: int, arguments: str, *, is_first: bool = True) -> ToolCallPart:
    if is_first:
        return ToolCallPart(index=index, id=f"call_{index}", name=f"tool{index}", arguments=arguments)
    return ToolCallPart(index=index, arguments=arguments)


def test_thoughts_text_and_calls_are_blocks_in_order():
    blocks, _ = run(
        ReasoningPart("hm"), TextPart("\n"), TextPart("Hello"), call(0, '{"a'), call(0, '":1}', is_first=False),
        TextPart("\n"), call(1, ""),
    )  # fmt: skip
    assert blocks == [
        answer.ThinkingBlock(thinking="hm"),
        answer.TextBlock(text="\nHello"),
        answer.ToolUseBlock(id="call_0", name="tool0", input={"a": 1}),
        answer.ToolUseBlock(id="call_1", name="tool1", input={}),
    ]


def test_events_of_a_block_come_in_their_order():
    _, events = run(TextPart("a"), TextPart("b"))
    assert events == [
        answer.ContentBlockStart(index=0, content_block=answer.TextBlock(text="")),
        answer.ContentBlockDelta(index=0, delta=answer.TextDelta(text="a")),
        answer.ContentBlockDelta(index=0, delta=answer.TextDelta(text="b")),
        answer.ContentBlockStop(index=0),
    ]


def test_an_answer_without_parts_is_an_empty_text():
    assert run()[0] == [answer.TextBlock(text="")]
    assert run(TextPart(" "))[0] == [answer.TextBlock(text=" ")]


def test_arguments_that_a_limit_cut_off_are_empty():
    assert run(call(0, '{"a'))[0] == [answer.ToolUseBlock(id="call_0", name="tool0", input={})]


_parts = st.lists(
    st.one_of(
        st.builds(TextPart, st.text(min_size=1, max_size=3)),
        st.builds(ReasoningPart, st.text(min_size=1, max_size=3)),
        st.none(),
    ),
    max_size=8,
)


@given(_parts)
def test_deltas_join_to_the_blocks(parts):
    blocks, events = run(*(call(number, "{}") if part is None else part for number, part in enumerate(parts)))
    texts = [""] * len(blocks)
    for event in events:
        match event:
            case answer.ContentBlockDelta(index=index, delta=answer.TextDelta(text=text)):
                texts[index] += text
            case answer.ContentBlockDelta(index=index, delta=answer.ThinkingDelta(thinking=text)):
                texts[index] += text
    for block, text in zip(blocks, texts, strict=True):
        match block:
            case answer.TextBlock():
                assert block.text == text
            case answer.ThinkingBlock():
                assert block.thinking == text
    opened = [event.index for event in events if isinstance(event, answer.ContentBlockStart)]
    closed = [event.index for event in events if isinstance(event, answer.ContentBlockStop)]
    assert opened == closed == list(range(len(blocks)))
