from __future__ import annotations

import aiohttp
from aiohttp import web
from aiohttp.test_utils import TestServer

from pagewire.frontend.bench.serving.server_metrics import ServerState, read_samples, watching_server

VLLM = """\
# HELP vllm:num_requests_running Requests.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a } b"} 3.0
vllm:num_requests_running{engine="1",model_name="a } b"} 4.0
vllm:num_requests_running_total{engine="0"} 99.0
vllm:kv_cache_usage_perc{engine="0"} 0.25 1700000000
vllm:kv_cache_usage_perc{engine="1"} 0.5
"""
LLAMA = "llamacpp:requests_processing 2\nllamacpp:requests_deferred 7\n"
OWN = 'pagewire:kv_slots_filled_perc{engine="0"} %s\n'


def test_samples_are_read_by_name_one_a_series():
    names = ("vllm:num_requests_running", "vllm:kv_cache_usage_perc", "llamacpp:requests_processing")
    assert read_samples(VLLM + LLAMA + "llamacpp:requests_processing\n", names) == {
        "vllm:num_requests_running": [3.0, 4.0],
        "vllm:kv_cache_usage_perc": [0.25, 0.5],
        "llamacpp:requests_processing": [2.0],
    }


def test_engines_behind_one_server_add_up_and_the_fullest_counts():
    state = ServerState()
    state.take(VLLM)
    assert (state.peak_running, state.peak_kv_use, state.mean_filled) == (7.0, 0.5, None)


def test_peaks_stay_and_the_filled_share_is_a_mean_over_busy_moments():
    state = ServerState()
    for text in (OWN % 0.9, OWN % 1.0, OWN % 0.0, LLAMA, LLAMA.replace(" 2", " 1")):
        state.take(text)
    assert state.peak_running == 2.0
    assert state.peak_kv_use is None
    assert state.mean_filled == 0.95


async def test_a_server_is_read_while_the_block_runs():
    scrapes: list[web.Request] = []

    async def metrics(request: web.Request) -> web.Response:
        scrapes.append(request)
        return web.Response(text=LLAMA)

    state = ServerState()
    async with (
        served(metrics) as url,
        aiohttp.ClientSession() as session,
        watching_server(session, url, state, interval_s=0.0),
    ):
        while len(scrapes) < 3:
            await aiohttp_turn(session, url)
    assert state.peak_running == 2.0


async def test_a_server_without_metrics_is_asked_once_and_says_nothing():
    scrapes: list[web.Request] = []

    async def metrics(request: web.Request) -> web.Response:
        scrapes.append(request)
        return web.Response(status=501)

    state = ServerState()
    async with (
        served(metrics) as url,
        aiohttp.ClientSession() as session,
        watching_server(session, url, state, interval_s=0.0),
    ):
        for _ in range(3):
            await aiohttp_turn(session, url)
    assert len(scrapes) == 1
    assert (state.peak_running, state.peak_kv_use, state.mean_filled) == (None, None, None)


async def answer_nothing(_: web.Request) -> web.Response:
    return web.Response()


class served:
    """A server with /metrics and, for the test's own turns, /."""

    def __init__(self, metrics) -> None:
        app = web.Application()
        app.router.add_get("/metrics", metrics)
        app.router.add_get("/", answer_nothing)
        self._server = TestServer(app)

    async def __aenter__(self) -> str:
        await self._server.start_server()
        return str(self._server.make_url("")).rstrip("/")

    async def __aexit__(self, *_: object) -> None:
        await self._server.close()


async def aiohttp_turn(session: aiohttp.ClientSession, url: str) -> None:
    """A request of the load: it takes its time, in which the scraper gets on."""
    async with session.get(url) as response:
        await response.read()
