"""Compressed bodies: taken apart whole and within a bound.

aiohttp could do it while it receives, but its parser then waits for good on a body that ends within its compressed
data, and drops connections on others.
"""

from __future__ import annotations

import zlib

from aiohttp import web

from ..errors import UnreadableBody, UnsupportedMediaType

# What zlib calls each format.
_WINDOW_BITS = {"gzip": zlib.MAX_WBITS + 16, "x-gzip": zlib.MAX_WBITS + 16, "deflate": zlib.MAX_WBITS}


def decompress(body: bytes, encoding: str, max_bytes: int) -> bytes:
    """Return a body as it was before its client compressed it.

    Args:
        body: as received, whole.
        encoding: the Content-Encoding header; empty if there is none.
        max_bytes: that the result may have; a bomb stops there.

    Raises:
        UnsupportedMediaType: the encoding is not known.
        UnreadableBody: the body is not what the encoding says.
        web.HTTPRequestEntityTooLarge: the result is over the bound.
    """
    name = encoding.strip().lower()
    if name in ("", "identity"):
        return body
    if name not in _WINDOW_BITS:
        raise UnsupportedMediaType("This Content-Encoding is not supported; send the body as it is, or by gzip.")
    decompressor = zlib.decompressobj(_WINDOW_BITS[name])
    try:
        plain = decompressor.decompress(body, max_bytes + 1)
    except zlib.error:
        raise UnreadableBody("The body is not what its Content-Encoding header says; send it as it is.") from None
    if len(plain) > max_bytes:
        raise web.HTTPRequestEntityTooLarge(max_size=max_bytes, actual_size=len(plain))
    if not decompressor.eof or decompressor.unused_data:
        raise UnreadableBody("The compressed body is cut off, or something follows it; send it as it is.")
    return plain
