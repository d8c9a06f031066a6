"""Jobs and replies survive the way to the helper process; what can't be passed on is the request's fault."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagewire.frontend.templates.jobs import (
    HEADER,
    MAX_MESSAGE_BYTES,
    Job,
    LoadTemplate,
    MessageDecoder,
    RenderChat,
    Rendered,
    Reply,
    encode_message,
)
from pagewire.ipc.errors import InvalidRequest, ProtocolError

JOBS: MessageDecoder[Job] = MessageDecoder(Job)
REPLIES: MessageDecoder[Reply] = MessageDecoder(Reply)

TEXTS = st.text(max_size=20)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=5,
)
OBJECTS = st.dictionaries(TEXTS, VALUES, max_size=3)


def sent(job: Job) -> Job:
    frame = encode_message(job)
    assert JOBS.length(frame[: HEADER.size]) == len(frame) - HEADER.size
    return JOBS.decode(frame[HEADER.size :])


@given(
    messages=st.lists(OBJECTS, max_size=3),
    arguments=st.none() | OBJECTS,
    tools=st.none() | st.lists(OBJECTS, max_size=2),
    source=st.none() | TEXTS,
    flags=st.tuples(st.booleans(), st.booleans()),
)
def test_a_chat_arrives_as_it_was_sent(messages, arguments, tools, source, flags):
    chat = RenderChat(
        messages=messages,
        add_generation_prompt=flags[0],
        continue_final_message=flags[1],
        tools=tools,
        template_arguments=arguments,
        source=source,
    )
    assert sent(chat) == chat


def nested(depth: int) -> object:
    value: object = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "words"),
    [("\ud83d", "surrogate"), (2**64, "64 bits"), (-(2**63) - 1, "64 bits"), (nested(5000), "nested")],
)
def test_what_can_not_be_passed_on_is_refused_by_what_it_is(value, words):
    with pytest.raises(InvalidRequest, match=words):
        encode_message(RenderChat(messages=[], template_arguments={"x": value}))


def test_a_message_beyond_the_bound_is_refused_before_it_is_sent():
    with pytest.raises(InvalidRequest, match=rf"at most {MAX_MESSAGE_BYTES}; send fewer"):
        encode_message(Rendered(text="x" * MAX_MESSAGE_BYTES))


def test_a_length_beyond_the_bound_makes_nobody_reserve_memory():
    with pytest.raises(ProtocolError, match=str(MAX_MESSAGE_BYTES + 1)):
        REPLIES.length(HEADER.pack(MAX_MESSAGE_BYTES + 1))


@pytest.mark.parametrize("payload", [b"", b"\xc1", b"\x91\xa4Made", b"\x91" * 5000])
def test_noise_is_no_reply(payload):
    with pytest.raises(ProtocolError):
        REPLIES.decode(payload)


def test_a_job_is_no_reply():
    with pytest.raises(ProtocolError):
        REPLIES.decode(encode_message(LoadTemplate(source=None, special_tokens={}))[HEADER.size :])
