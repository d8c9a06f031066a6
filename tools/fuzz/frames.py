"""Frames for a core's socket: noise, and messages of the wire protocol with something wrong in them."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from pagewire.ipc.codec import PROTOCOL_VERSION, encode
from pagewire.ipc.requests import (
    AbortRequests,
    AddRequest,
    CallUtility,
    ClientMessage,
    EmbedTask,
    GenerateTask,
    Hello,
    Ping,
    ResumedChild,
    Task,
    TokenInputs,
)
from pagewire.ipc.sampling_params import Sampling

T = TypeVar("T")

# What other systems would have unpickled, and what msgpack readers have choked on: nesting, and lengths that lie.
_CLASSICS = (
    b"",
    b"\x00",
    b"\xc1",
    b"\x80\x04\x95\x1d\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94\x8c\x06system\x94\x93\x94\x8c\x02id\x94\x85\x94R\x94.",
    b"\x91" * 100_000,
    b"\x81\xa1a" * 50_000,
    b"\xdd\xff\xff\xff\xff",
    b"\xdf\xff\xff\xff\xff",
    b"\xdb\xff\xff\xff\xffx",
    b"\xc9\xff\xff\xff\xff\x01",
    b"\x92\xa5Hello\xcb\x7f\xf8\x00\x00\x00\x00\x00\x00",
    b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    b'{"type": "Hello"}',
)
_NASTY: tuple[Any, ...] = (  # Any: whatever msgpack can say
    None, True, -1, 0, 2**31, 2**63 - 1, -(2**63), 2**64 - 1, 1e308, float("nan"), float("inf"), "", "x" * 5000,
    "\x1b[2J\n", b"", b"\xff" * 300, [], [[]], [0] * 5000, {}, {"a": 1}, {1: {2: {}}}, msgspec.msgpack.Ext(5, b"x"),
)  # fmt: skip


class Frames:
    """Makes frames, the same ones for the same seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def noise(self) -> list[bytes]:
        """Return the parts of a message that is none; nearly always one."""
        makers: tuple[Callable[[], bytes], ...] = (self._noise, self._classic, self._cut, self._changed, self._replaced)
        frame = self._random.choice(makers)()
        if self._random.random() < 0.03:
            return [frame] * self._random.choice([2, 3, 200])
        return [frame]

    def odd_message(self) -> bytes:
        """Return a message as it should be, with values that no client means."""
        return encode(self._message())

    def greets(self) -> bool:
        """Return whether to greet before the next message: who has sent noise is sent away, and gets no further."""
        return self._random.random() < 0.5

    def greeting(self) -> bytes:
        """Return a `Hello` that fits."""
        return encode(Hello(protocol_version=PROTOCOL_VERSION, client_name="fuzz"))

    def _noise(self) -> bytes:
        return self._random.randbytes(self._random.choice([1, 2, 8, 60, 300]))

    def _classic(self) -> bytes:
        return self._random.choice(_CLASSICS)

    def _cut(self) -> bytes:
        frame = encode(self._message())
        return frame[: self._random.randrange(len(frame))] + self._noise() * self._random.randrange(2)

    def _changed(self) -> bytes:
        frame = bytearray(encode(self._message()))
        for _ in range(self._random.choice([1, 1, 2, 5])):
            frame[self._random.randrange(len(frame))] = self._random.randrange(256)
        return bytes(frame)

    def _replaced(self) -> bytes:
        """A message that is well-formed msgpack, with one value of it exchanged for another."""
        fields = msgspec.msgpack.decode(encode(self._message()))
        place = fields
        while True:
            index = self._random.randrange(len(place))
            inner = place[index]
            if isinstance(inner, list) and inner and self._random.random() < 0.7:
                place = inner
                continue
            place[index] = self._random.choice(_NASTY)
            return msgspec.msgpack.encode(fields)

    def _message(self) -> ClientMessage:
        number = self._random.randrange(1, 50)
        messages: tuple[Callable[[], ClientMessage], ...] = (
            lambda: Hello(protocol_version=PROTOCOL_VERSION, client_name="fuzz again"),
            *[lambda: self._add(number)] * 60,
            *[lambda: CallUtility(call_id=number, method=self._random.choice(["stats", "pool", "exec"]), args=[number])]
            * 4,
            lambda: AbortRequests(request_ids=[number, -number], children=[(number, self._random.randrange(-2, 9))]),
            Ping,
        )
        return self._random.choice(messages)()

    def _add(self, number: int) -> AddRequest:
        either = self._either
        sampling = Sampling(
            temperature=either(1.0, 0.0, -1.0, 1e300),
            top_p=either(1.0, 0.5, 0.0, 7.0),
            top_k=either(0, 5, -1),
            seed=either(7, -(2**63), 2**63 - 1),
            num_logprobs=either(None, 0, 5, 10**9),
            num_prompt_logprobs=either(None, -7, 2),
            min_tokens=either(0, 3, -1, 2**62),
        )
        generate: Task = GenerateTask(
            sampling=sampling,
            n=either(1, 2, 0, -3, 10**6),
            max_tokens=either(4, None, 1, 0, 2**40),
            stop_token_ids=either([], [1, 2], [-1], [0] * 5000),
        )
        child = ResumedChild(child=either(0, 1, -1), output_token_ids=either([3], [], [2**62]))
        return AddRequest(
            request_id=either(number, 0, -1, 2**63 - 1),
            inputs=TokenInputs(prompt_token_ids=either([5, 6, 7], [], [1] * 60, [1] * 500, [-1], [2**31])),
            task=either(generate, EmbedTask(), EmbedTask(pooling="mean")),
            label=either("", "x" * 5000, "\x1b[2J"),
            priority=either(0, 5, -(2**63)),
            cache_salt=either("", "salt", "s" * 5000),
            timeout_s=either(None, 0.001, 1e300, 0.0, -1.0, float("nan")),
            is_readded=either(False, True),
            resumed_children=either([], [child], [child, child]),
            num_deaths=either(0, 1, 2, 10**12, -1),
        )

    def _either(self, usual: T, *odd: T) -> T:
        """Return the usual value, or now and then one of the others."""
        return self._random.choice(odd) if self._random.random() < 0.08 else usual
