"""How failures reach a client before and within a stream."""

from __future__ import annotations

from pagewire.ipc.errors import ExecutorDied
from pagewire.ipc.outputs import RequestEnd, StepOutputs
from pagewire.ipc.requests import AddRequest
from tests.support.fake_core import until
from tests.support.http_server import parse_events, running_server


async def test_engine_error_before_acceptance_has_its_own_status():
    async with running_server(refuses=lambda request: ExecutorDied("The executor ended.")) as server:
        for stream in (False, True):
            status, answer = await server.post("/v1/completions", prompt="p", stream=stream)
            assert (status, answer["error"]["message"]) == (500, "The executor ended.")


async def test_failure_in_a_stream_is_an_event_before_done():
    async with running_server("a" * 50, num_steps=3) as server:
        async with server.http.post("/v1/completions", json={"prompt": "p", "stream": True, "n": 1}) as response:
            assert response.status == 200
            await until(lambda: server.core.num_steps_left == 0)
            request = await server.core.next(AddRequest)
            error = ExecutorDied("The executor ended.").to_info()
            await server.core.send(StepOutputs(ends=[RequestEnd(request_id=request.request_id, error=error)]))
            *_, last, done = parse_events(await response.text())
        assert done == "[DONE]"
        assert last == {
            "error": {
                "message": "The executor ended.",
                "type": "server_error",
                "param": None,
                "code": "engine_error",
            }
        }
        assert await server.metric("vllm:request_success_total", finished_reason="error") == 1
