"""What administers an engine: vLLM's paths and shapes, and only where they are switched on."""

from __future__ import annotations

import pytest

from pagewire.ipc.requests import CallUtility
from pagewire.ipc.server_config import ServerConfig
from tests.support.http_server import running_server

ADMIN = ServerConfig(enable_admin=True)
PATHS = [
    ("POST", "/sleep"),
    ("POST", "/wake_up"),
    ("GET", "/is_sleeping"),
    ("POST", "/pause"),
    ("POST", "/resume"),
    ("GET", "/is_paused"),
    ("POST", "/abort_requests"),
    ("POST", "/reset_prefix_cache"),
    ("GET", "/server_info"),
]


async def call(server, method, path, **options):
    async with server.http.request(method, path, **options) as response:
        return response.status, await response.json()


@pytest.mark.parametrize(("method", "path"), PATHS)
async def test_without_the_flag_nothing_is_there_and_the_answer_names_it(method, path):
    async with running_server() as server:
        status, answer = await call(server, method, path)
        assert status == 404
        assert "--enable-admin" in answer["error"]["message"]
        assert not [message for message in server.core.received if isinstance(message, CallUtility)]


@pytest.mark.parametrize(
    ("method", "path", "orders", "answer"),
    [
        ("POST", "/sleep", [("sleep", [1, "abort"])], {"status": "sleeping", "level": 1}),
        ("POST", "/sleep?level=2&mode=keep", [("sleep", [2, "keep"])], {"status": "sleeping", "level": 2}),
        ("POST", "/sleep?level=0&mode=wait", [("pause", ["wait", False])], {"status": "sleeping", "level": 0}),
        ("POST", "/wake_up", [("wake_up", []), ("resume", [])], {"status": "awake", "tags": None}),
        (
            "POST",
            "/wake_up?tags=weights&tags=kv_cache",
            [("wake_up", []), ("resume", [])],
            {"status": "awake", "tags": ["weights", "kv_cache"]},
        ),
        ("GET", "/is_sleeping", [("is_sleeping", [])], {"is_sleeping": True}),
        ("POST", "/pause", [("pause", ["abort", True])], {"status": "paused"}),
        ("POST", "/pause?mode=keep&clear_cache=false", [("pause", ["keep", False])], {"status": "paused"}),
        ("POST", "/pause?wait_for_inflight_requests=true", [("pause", ["wait", True])], {"status": "paused"}),
        ("POST", "/resume", [("resume", [])], {"status": "resumed"}),
        ("GET", "/is_paused", [("is_paused", [])], {"is_paused": True}),
        ("POST", "/reset_prefix_cache", [("reset_prefix_cache", [False, False])], {"success": True}),
        (
            "POST",
            "/reset_prefix_cache?reset_running_requests=true",
            [("reset_prefix_cache", [True, False])],
            {"success": True},
        ),
    ],
)
async def test_each_path_calls_the_engine(method, path, orders, answer):
    async with running_server(config=ADMIN) as server:
        names = ("sleep", "wake_up", "is_sleeping", "pause", "resume", "is_paused", "reset_prefix_cache")
        server.core.answers = dict.fromkeys(names, True)
        assert await call(server, method, path) == (200, answer)
        calls = [message for message in server.core.received if isinstance(message, CallUtility)]
        assert [(message.method, message.args) for message in calls] == orders


async def test_requests_are_found_by_the_ids_of_their_answers_too():
    async with running_server(config=ADMIN) as server:
        server.core.answers["abort_requests"] = 2
        body = {"request_ids": ["mine"]}
        assert await call(server, "POST", "/abort_requests", json=body) == (200, {"status": "aborted", "aborted": 2})
        labels = (await server.core.next(CallUtility)).args
    assert {"mine", "cmpl-mine", "chatcmpl-mine", "embd-mine"} <= set(labels)


async def test_no_ids_are_all_requests():
    async with running_server(config=ADMIN) as server:
        server.core.answers["abort_requests"] = 5
        assert (await call(server, "POST", "/abort_requests", json={}))[1]["aborted"] == 5
        assert (await server.core.next(CallUtility)).args == []


@pytest.mark.parametrize(
    ("method", "path", "param"),
    [
        ("POST", "/sleep?level=3", "level"),
        ("POST", "/sleep?mode=hard", "mode"),
        ("POST", "/sleep?deep=1", "deep"),
        ("POST", "/wake_up?tags=coffee", "tags"),
        ("POST", "/pause?clear_cache=maybe", "clear_cache"),
        ("GET", "/server_info?config_format=yaml", "config_format"),
    ],
)
async def test_what_makes_no_sense_is_refused_by_name(method, path, param):
    async with running_server(config=ADMIN) as server:
        status, answer = await call(server, method, path)
    assert status == 400
    assert answer["error"]["param"] == param


async def test_server_info_says_what_is_served():
    async with running_server(config=ADMIN) as server:
        _, as_text = await call(server, "GET", "/server_info")
        _, as_json = await call(server, "GET", "/server_info?config_format=json")
    assert "max_model_len=256" in as_text["vllm_config"]
    assert as_json["vllm_config"]["max_model_len"] == 256
