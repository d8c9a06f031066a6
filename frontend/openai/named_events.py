"""Server-sent events that bear the name of their type, as other dialects than chat completions send them."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from .bodies.json_body import encode_json


def encode_events(events: Iterable[msgspec.Struct]) -> bytes:
    """Return events as they are sent, each under its struct's tag."""
    return b"".join(
        b"event: %b\ndata: %b\n\n" % (str(each.__struct_config__.tag).encode(), encode_json(each)) for each in events
    )
