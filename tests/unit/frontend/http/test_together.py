"""A frontend whose launcher says nothing goes on with what the others last had."""

from __future__ import annotations

import pytest

from pagewire.frontend.exchange.messages import Answer, FrontendFigures, ProcessFamily, ProcessSample
from pagewire.frontend.http.figures import Figures
from pagewire.frontend.http.together import Together
from tests.support.http_server import running_server


class Launcher:
    """What a frontend hears of the others."""

    index, count = 0, 2

    def __init__(self) -> None:
        self.answer = Answer()

    async def figures(self, own: FrontendFigures) -> Answer:
        return self.answer

    async def load(self) -> Answer:
        return self.answer


def sample(page: bytes, start: str) -> float:
    [line] = [line for line in page.decode().splitlines() if line.startswith(start)]
    return float(line.rsplit(" ", 1)[1])


@pytest.mark.parametrize("name", ['vllm:request_success_total{engine="0",finished_reason="stop"'])
async def test_counters_do_not_fall_while_the_launcher_is_silent(name: str):
    launcher = Launcher()
    others = Figures({("request_success", "stop"): 7})
    family = ProcessFamily("process_open_fds", "", "gauge", [ProcessSample("process_open_fds", {}, 3.0)])
    launcher.answer = Answer(figures=FrontendFigures(others, {1: [family]}), load=2)
    async with running_server("hello") as server:
        await server.complete()
        together = Together(server.serving, launcher)
        page = await together.metrics_page()
        assert sample(page, name) == 8
        assert sample(page, 'process_open_fds{frontend="1"') == 3
        assert sample(page, 'pagewire_frontends{state="answering"') == 2
        assert await together.load() == {"server_load": 2}
        launcher.answer = Answer(num_missing=1)
        page = await together.metrics_page()
        assert sample(page, name) == 8
        assert sample(page, 'pagewire_frontends{state="silent"') == 1
        assert await together.load() == {"server_load": 0, "num_frontends_missing": 1}
        assert (await together.figures()).counters["request_success", "stop"] == 8
