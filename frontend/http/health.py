"""/health, /live, /ping, /version and /metrics: what orchestrators and monitors ask."""

from __future__ import annotations

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from pagewire.version import __version__

from ..openai.errors import error_response
from ..openai.serving import SERVING

REGISTRY = web.AppKey("registry", CollectorRegistry)


async def health(request: web.Request) -> web.Response:
    """200 with an empty body while requests can be answered; 503 once the engine is gone."""
    death = request.app[SERVING].death()
    if death is None:
        return web.Response()
    response = error_response(death)
    response.set_status(503)
    return response


async def live(_request: web.Request) -> web.Response:
    """200 as long as this process answers at all."""
    return web.Response()


async def version(_request: web.Request) -> web.Response:
    """The server's version."""
    return web.json_response({"version": __version__})


async def metrics(request: web.Request) -> web.Response:
    """All figures in the format that the scraper asks for."""
    encoder, content_type = choose_encoder(request.headers.get("Accept", ""))
    return web.Response(body=encoder(request.app[REGISTRY]), headers={"Content-Type": content_type})
