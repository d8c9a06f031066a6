"""What the frontend and the process that renders chat templates say to each other over a socket pair.

One message is a length of four bytes and msgpack; one job at a time is answered by one reply.
"""

from __future__ import annotations

import struct
from typing import Any, Generic, TypeVar

import msgspec

from pagewire.ipc.errors import ErrorInfo, InvalidRequest, ProtocolError

from ..text.chat_content import ContentFormat

HEADER = struct.Struct("<I")
# A body is at most 8 MiB, and a prompt little longer than the messages in it. What a template blows up beyond that is
# refused in the helper, before the frontend makes room for it.
MAX_MESSAGE_BYTES = 32 * 2**20


class _Message(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag=True):
    """Shared struct options; not a place for fields."""


class LoadTemplate(_Message, frozen=True, kw_only=True):
    """The first job of a process, answered by `Loaded` or `Refused`.

    Attributes:
        source: the Jinja text to compile; None for a process that is given one with each job, or a model without one.
        special_tokens: role -> token, variables of every template.
        content_format: in which shape messages get to it.
    """

    source: str | None
    special_tokens: dict[str, str]
    content_format: ContentFormat = "auto"


class RenderChat(_Message, frozen=True, kw_only=True):
    """Make a prompt of messages; answered by `Rendered` or `Refused`. See `ChatTemplate.render` for the arguments.

    Attributes:
        source: the request's own template, instead of the loaded one.
    """

    messages: list[dict[str, Any]]  # Any: messages, tools, documents and arguments are plain JSON values
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    tools: list[dict[str, Any]] | None = None
    documents: list[dict[str, Any]] | None = None
    template_arguments: dict[str, Any] | None = None
    source: str | None = None


class Loaded(_Message, frozen=True, kw_only=True):
    """The template is compiled."""


class Rendered(_Message, frozen=True, kw_only=True):
    """The prompt."""

    text: str


class Refused(_Message, frozen=True, kw_only=True):
    """The template is no template, or refuses the messages, or fails on them."""

    error: ErrorInfo


Job = LoadTemplate | RenderChat
Reply = Loaded | Rendered | Refused
T = TypeVar("T")

_encoder = msgspec.msgpack.Encoder()


class MessageDecoder(Generic[T]):
    """Reads one direction of the conversation."""

    def __init__(self, union: Any) -> None:  # Any: a union of types is not a type
        self._decoder: msgspec.msgpack.Decoder[T] = msgspec.msgpack.Decoder(union)

    def length(self, header: bytes) -> int:
        """Return how many bytes follow a header.

        Raises:
            ProtocolError: more than any message has.
        """
        (length,) = HEADER.unpack(header)
        if length > MAX_MESSAGE_BYTES:
            raise ProtocolError(f"a message of {length} bytes; at most {MAX_MESSAGE_BYTES} are sent")
        return int(length)

    def decode(self, payload: bytes) -> T:
        """Return the message.

        Raises:
            ProtocolError: it is none of this direction.
        """
        try:
            return self._decoder.decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
            raise ProtocolError(f"unreadable message: {exc}") from exc


def encode_message(message: Job | Reply) -> bytes:
    """Return a message with its header.

    Raises:
        InvalidRequest: a text, a number or the nesting of a value can't be passed on, or all of it is too long.
    """
    try:
        payload = _encoder.encode(message)
    except UnicodeEncodeError:
        raise InvalidRequest("a text of the chat has a lone surrogate, which is no Unicode character") from None
    except OverflowError:
        raise InvalidRequest("a whole number of the chat is beyond 64 bits") from None
    except RecursionError:
        raise InvalidRequest("a value of the chat is nested too deeply") from None
    if len(payload) > MAX_MESSAGE_BYTES:
        raise InvalidRequest(
            f"the chat template makes a prompt of {len(payload)} bytes of these messages, of at most "
            f"{MAX_MESSAGE_BYTES}; send fewer"
            if isinstance(message, Rendered)
            else f"the chat takes {len(payload)} bytes, of at most {MAX_MESSAGE_BYTES}; send fewer messages"
        )
    return HEADER.pack(len(payload)) + payload
