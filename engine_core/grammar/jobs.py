"""What the core and its grammar helper say to each other: a length, then a message."""

from __future__ import annotations

import socket
import struct

import msgspec

from pagewire.ipc.errors import ErrorInfo
from pagewire.ipc.structured_outputs import Grammar

from .vocabulary_source import VocabularySource

_HEADER = struct.Struct("<I")
_MAX_BYTES = 64 * 2**20


class LoadVocabulary(msgspec.Struct, frozen=True, tag=True):
    """The first job: answered by `Done` without a text, or `Refused`."""

    source: VocabularySource


class ProveGrammar(msgspec.Struct, frozen=True, tag=True):
    """Translate a grammar, compile it, compute its first mask within so many seconds of computing: any answer."""

    grammar: Grammar
    limit_s: float


class Done(msgspec.Struct, frozen=True, tag=True):
    """The grammar in the library's language: it compiles."""

    text: str = ""


class Refused(msgspec.Struct, frozen=True, tag=True):
    """It can't be done, whoever asks."""

    error: ErrorInfo


class TookTooLong(msgspec.Struct, frozen=True, tag=True):
    """It was not done within its time."""


Job = LoadVocabulary | ProveGrammar
Reply = Done | Refused | TookTooLong

jobs: msgspec.msgpack.Decoder[Job] = msgspec.msgpack.Decoder(Job)
replies: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)


def send_message(pair: socket.socket, message: Job | Reply) -> None:
    """Send one message; waits as long as the other end does not read."""
    payload = msgspec.msgpack.encode(message)
    pair.sendall(_HEADER.pack(len(payload)) + payload)


def receive_message(pair: socket.socket) -> bytes:
    """Wait for a message and return it, not decoded.

    Raises:
        EOFError: the other end is closed.
        TimeoutError: as the socket's timeout has it, for each part of the message.
    """
    (size,) = _HEADER.unpack(_receive(pair, _HEADER.size))
    if size > _MAX_BYTES:
        raise EOFError(f"a message of {size} bytes")
    return _receive(pair, size)


def _receive(pair: socket.socket, size: int) -> bytes:
    received = bytearray()
    while len(received) < size:
        part = pair.recv(size - len(received))
        if not part:
            raise EOFError("it closed its end")
        received += part
    return bytes(received)
