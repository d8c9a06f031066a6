"""msgpack encoding of the message unions, and the protocol version that both sides must share."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import msgspec

from .errors import ProtocolError
from .outputs import CoreMessage
from .requests import ClientMessage, Message
from .steps import FromExecutor, ToExecutor

# Counts up with every change of a message in ipc/requests.py, ipc/outputs.py or their parts.
PROTOCOL_VERSION = 9

T = TypeVar("T")

_encoder = msgspec.msgpack.Encoder()


def encode(message: Message) -> bytes:
    """Return the message as one msgpack frame."""
    return _encoder.encode(message)


class Codec(Generic[T]):
    """Decodes one direction of a conversation."""

    def __init__(self, union: Any) -> None:  # Any: a union of types is not a type
        self._decoder: msgspec.msgpack.Decoder[T] = msgspec.msgpack.Decoder(union)

    def decode(self, frame: bytes | memoryview) -> T:
        """Return the message in `frame`.

        Raises:
            ProtocolError: the frame is not a message of this direction.
        """
        try:
            return self._decoder.decode(frame)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
            raise ProtocolError(f"unreadable message: {exc}") from exc


client_messages: Codec[ClientMessage] = Codec(ClientMessage)
core_messages: Codec[CoreMessage] = Codec(CoreMessage)
to_executor: Codec[ToExecutor] = Codec(ToExecutor)
from_executor: Codec[FromExecutor] = Codec(FromExecutor)
