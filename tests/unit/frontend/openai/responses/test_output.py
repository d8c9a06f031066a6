"""Parts become items, and the events of a stream tell the same as the items."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from pagewire.frontend.answers.parts import AnswerPart, ReasoningPart, TextPart, ToolCallPart
from pagewire.frontend.openai.responses import events
from pagewire.frontend.openai.responses.answer import FunctionCallItem, OutputMessage, ReasoningItem
from pagewire.frontend.openai.responses.output import ResponseOutput


def output() -> ResponseOutput:
    counters: dict[str, itertools.count[int]] = {}

    def new_id(prefix: str) -> str:
        return f"{prefix}_{next(counters.setdefault(prefix, itertools.count()))}"

    return ResponseOutput(itertools.count().__next__, new_id)


def run(*parts: AnswerPart, status="completed"):
    made = output()
    told = [event for part in parts for event in made.push([part])]
    told += made.finish(status)
    return made.items, told


def call(index: int, arguments: str, *, is_first: bool = True) -> ToolCallPart:
    if is_first:
        return ToolCallPart(index=index, id=f"call_{index}", name=f"tool{index}", arguments=arguments)
    return ToolCallPart(index=index, arguments=arguments)


def test_reasoning_text_and_calls_are_items_in_order():
    items, told = run(
        ReasoningPart("hm"), TextPart("\n\n"), TextPart("Hello"), call(0, '{"a'), call(0, '":1}', is_first=False),
        TextPart("\n"), call(1, "{}"),
    )  # fmt: skip
    assert [type(item) for item in items] == [ReasoningItem, OutputMessage, FunctionCallItem, FunctionCallItem]
    assert items[0].content[0].text == "hm"
    assert items[1].content[0].text == "\n\nHello"
    assert (items[2].name, items[2].call_id, items[2].arguments) == ("tool0", "call_0", '{"a":1}')
    assert items[3].name == "tool1"
    assert [event.sequence_number for event in told] == list(range(len(told)))


def test_events_of_a_message_come_in_their_order():
    _, told = run(TextPart("a"), TextPart("b"))
    assert [type(event) for event in told] == [
        events.OutputItemAdded, events.ContentPartAdded, events.OutputTextDelta, events.OutputTextDelta,
        events.OutputTextDone, events.ContentPartDone, events.OutputItemDone,
    ]  # fmt: skip


def test_events_of_a_call_come_in_their_order():
    _, told = run(call(0, ""), call(0, "{}", is_first=False))
    assert [type(event) for event in told] == [
        events.OutputItemAdded, events.FunctionCallArgumentsDelta, events.FunctionCallArgumentsDone,
        events.OutputItemDone,
    ]  # fmt: skip


def test_an_answer_without_parts_is_an_empty_message():
    items, told = run()
    [message] = items
    assert message.content[0].text == ""
    assert told[-1].item == message


def test_white_space_alone_is_kept_where_nothing_else_is():
    items, _ = run(TextPart(" "), TextPart("\n"))
    assert items[0].content[0].text == " \n"


def test_what_a_limit_cut_is_incomplete():
    items, _ = run(TextPart("a"), call(0, '{"a'), status="incomplete")
    assert [item.status for item in items] == ["completed", "incomplete"]


_parts = st.lists(
    st.one_of(
        st.builds(TextPart, st.text(min_size=1, max_size=3)),
        st.builds(ReasoningPart, st.text(min_size=1, max_size=3)),
        st.builds(lambda arguments: ToolCallPart(index=0, arguments=arguments), st.text(max_size=3)),
    ),
    max_size=8,
)


@given(_parts)
def test_events_join_to_the_items(parts):
    numbered: list[AnswerPart] = []
    for number, part in enumerate(parts):  # each call part begins a call of its own
        is_call = isinstance(part, ToolCallPart)
        numbered.append(call(number, part.arguments) if is_call else part)
    items, told = run(*numbered)
    texts: dict[int, str] = {}
    for event in told:
        match event:
            case events.OutputTextDelta() | events.ReasoningTextDelta() | events.FunctionCallArgumentsDelta():
                texts[event.output_index] = texts.get(event.output_index, "") + event.delta
            case events.OutputItemDone():
                assert items[event.output_index] == event.item
    for index, item in enumerate(items):
        whole = item.arguments if isinstance(item, FunctionCallItem) else item.content[0].text
        assert texts.get(index, "") == whole
