"""Reading a JSON body into a typed request: every malformed body is a 400 that names the place."""

from __future__ import annotations

import asyncio
import re
from typing import Any, Generic, TypeVar

import msgspec
from aiohttp import web

from pagewire.ipc.errors import InvalidRequest

from ..errors import BodyTimeout, UnreadableBody, UnsupportedMediaType
from .content_encoding import decompress
from .json_depth import has_more, is_deeper

# The longest wait for a whole body: a client that trickles bytes must not hold a connection for ever.
BODY_TIMEOUT_S = 60.0
# Objects and lists within one another. Values that are passed on as they are (template variables, JSON schemas) are
# walked by code that calls itself, so the decoder's own limit of about 1000 would be too late.
MAX_DEPTH = 64
# Objects and lists in all. Each takes a place in memory many times its size in the body, and time of the event loop: a
# body full of them takes a second. Chats have some per message, prompts of token ids one each.
MAX_CONTAINERS = 100_000

T = TypeVar("T", bound=msgspec.Struct)

_UNKNOWN_FIELD = re.compile(r"Object contains unknown field `(.*?)`(?: - at `\$\.?(.*)`)?$", re.DOTALL)
_PATH = re.compile(r" - at (?:`key` in )?`\$\.?(.*)`$", re.DOTALL)


class JsonBody(Generic[T]):
    """Decodes the bodies of one endpoint."""

    def __init__(self, schema: type[T]) -> None:
        self._decoder = msgspec.json.Decoder(schema)

    async def read(self, request: web.Request) -> T:
        """Read and decode the body of `request`.

        Raises:
            UnsupportedMediaType: the body isn't declared as JSON, or compressed in an unknown way.
            InvalidRequest: the body isn't JSON, or not of this endpoint's shape; `param` is the path of the field.
            UnreadableBody: it can't be put together or decompressed.
            web.HTTPRequestEntityTooLarge: the body is over the server's limit.
            BodyTimeout: it doesn't arrive in time.
        """
        if request.content_type.lower() != "application/json":
            raise UnsupportedMediaType("Send the body as JSON, with the header Content-Type: application/json.")
        try:
            async with asyncio.timeout(BODY_TIMEOUT_S):
                body = await request.read()
        except TimeoutError:
            raise BodyTimeout(f"The body did not arrive within {BODY_TIMEOUT_S:g} s.") from None
        except web.RequestPayloadError:
            raise UnreadableBody("The body can't be read: its chunks are malformed.") from None
        encoding = request.headers.get("Content-Encoding", "")
        return self.decode(decompress(body, encoding, request.client_max_size))

    def decode(self, body: bytes) -> T:
        """Decode a body.

        Raises:
            InvalidRequest: it isn't JSON, or not of this endpoint's shape.
        """
        if has_more(body, MAX_CONTAINERS):
            raise InvalidRequest(
                f"The body holds more than {MAX_CONTAINERS} objects and lists; send fewer messages, parts or prompts."
            )
        try:
            decoded = self._decoder.decode(body)
        except msgspec.ValidationError as exc:
            raise _invalid_value(str(exc)) from None
        except (msgspec.DecodeError, UnicodeDecodeError) as exc:
            raise InvalidRequest(f"The body is not valid JSON: {exc}.") from None
        except RecursionError:
            raise _too_deep() from None
        if is_deeper(body, MAX_DEPTH):
            raise _too_deep()
        return decoded


def _too_deep() -> InvalidRequest:
    return InvalidRequest(
        f"The body nests more than {MAX_DEPTH} objects and lists within one another; send it flatter."
    )


def _invalid_value(text: str) -> InvalidRequest:
    unknown = _UNKNOWN_FIELD.match(text)
    if unknown is not None:
        parent, name = unknown.group(2), unknown.group(1)
        path = f"{parent}.{name}" if parent else name
        return InvalidRequest(
            f"Unknown field {path!r}: this server refuses what it would have to ignore; leave it out.", param=path
        )
    found = _PATH.search(text)
    if found is None:
        return InvalidRequest(f"The body has a wrong shape: {text}.")
    # "messages[0].content" and "stop[...]" are found by their first name.
    path = found.group(1)
    return InvalidRequest(f"Wrong value for {path}: {text[: found.start()]}.", param=path)


def encode_json(value: Any) -> bytes:  # Any: whatever msgspec can encode
    """Return the JSON of a response."""
    return _encoder.encode(value)


def json_response(value: Any, request_id: str) -> web.Response:  # Any: as above
    """Return a response with a JSON body."""
    return web.Response(
        body=encode_json(value),
        content_type="application/json",
        charset="utf-8",
        headers={"X-Request-Id": request_id},
    )


_encoder = msgspec.json.Encoder()
