"""GET /v1/engine/events: the engine, once a second, as server-sent events. It is read only, and needs a key."""

from __future__ import annotations

from aiohttp import web

from ..http.sse import EventStream, event
from ..openai.serving import SERVING
from .engine_feed import EngineFeed

FEED = web.AppKey("engine_feed", EngineFeed)


async def watch_engine(request: web.Request) -> web.StreamResponse:
    """Send a picture of the engine a second until the client leaves or the server stops.

    Raises:
        Overloaded: too many watch already.
    """
    feed = request.app[FEED]
    inbox = feed.join()
    try:
        async with EventStream(request, request.app[SERVING].times) as stream:
            while (picture := await inbox.get()) is not None:
                await stream.send(event(picture))
            await stream.finish()
            return stream.response
    finally:
        feed.leave(inbox)
