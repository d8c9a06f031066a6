"""/health, /live, /ping, /version and /metrics: what orchestrators and monitors ask."""

from __future__ import annotations

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest

from pagewire.version import __version__

from ..openai.errors import error_response
from ..openai.serving import SERVING

REGISTRY = web.AppKey("registry", CollectorRegistry)

# Whatever the scraper asks for: all take it, and in OpenMetrics, which Prometheus asks for first, prometheus_client
# writes the colon of every name as an underscore, under which no dashboard looks.
_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


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
    """All figures in Prometheus' text format."""
    return web.Response(body=generate_latest(request.app[REGISTRY]), headers={"Content-Type": _METRICS_TYPE})
