"""/health, /live, /ping, /load, /version and /metrics: what orchestrators and monitors ask."""

from __future__ import annotations

from aiohttp import web

from pagewire.ipc.errors import EngineDead, PagewireError
from pagewire.version import __version__

from ..openai.errors import error_response
from ..openai.serving import SERVING, Serving
from .together import TOGETHER

# How long an engine that said nothing lately may take to answer: a death or a stop shows in /health within a second.
PROBE_TIMEOUT_S = 0.75

# Whatever the scraper asks for: all take it, and in OpenMetrics, which Prometheus asks for first, prometheus_client
# writes the colon of every name as an underscore, under which no dashboard looks.
_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


async def health(request: web.Request) -> web.Response:
    """200 with an empty body while requests can be answered; else 503 with the reason: readiness."""
    obstacle = await _find_obstacle(request.app[SERVING])
    if obstacle is None:
        return web.Response()
    response = error_response(obstacle)
    response.set_status(503)
    return response


async def live(_request: web.Request) -> web.Response:
    """200 as long as this process answers at all."""
    return web.Response()


async def load(request: web.Request) -> web.Response:
    """How many requests are being answered by all frontends, those in the background among them."""
    return web.json_response(await request.app[TOGETHER].load())


async def version(_request: web.Request) -> web.Response:
    """The server's version."""
    return web.json_response({"version": __version__})


async def metrics(request: web.Request) -> web.Response:
    """All figures in Prometheus' text format."""
    return web.Response(body=await request.app[TOGETHER].metrics_page(), headers={"Content-Type": _METRICS_TYPE})


async def _find_obstacle(serving: Serving) -> PagewireError | None:
    """Return why a new request would be refused, or would wait for the engine to come back; None if nothing does."""
    client = serving.generator.client
    if serving.admission.is_closed:
        return serving.admission.refusal()
    if client.death is not None:
        return client.death
    if not client.is_serving:
        return EngineDead("The engine is being restarted; requests wait until it is back.")
    if not await client.probe(PROBE_TIMEOUT_S):
        return EngineDead("The engine does not answer.")
    return None
