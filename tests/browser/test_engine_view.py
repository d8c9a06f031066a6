"""The engine's view over a real engine: it moves when there is work, and says so when the engine is gone."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from tests.support.browser import VIEW, PageDriver, served_page
from tests.support.running_server import running_server
from tests.support.tiny_model import tiny_checkpoint

pytestmark = pytest.mark.slow

PROMPT = "several requests begin with the same words, so that they share blocks " * 4


def tile(page: PageDriver, name: str) -> str:
    (found,) = [each for each in page.find_all(".tile") if each.find_element("css selector", "dt").text == name]
    return found.find_element("css selector", "dd").text


def state_of(page: PageDriver) -> str:
    return page.find("#engine-status").get_attribute("data-state")


def pixels(page: PageDriver) -> str:
    return page.run("return document.querySelector('.block-map').toDataURL()")


def test_it_moves_under_load_and_shows_a_restart(browser, tmp_path: Path):
    model = str(tiny_checkpoint("llama"))
    with running_server(tmp_path, model, "--served-model-name", "tiny", "--num-gpu-blocks-override", "96") as server:
        page = PageDriver(browser, server.url + "/#engine")
        page.until(lambda: state_of(page) == "live", "the first picture")
        idle = page.until(lambda: pixels(page), "the map")
        assert tile(page, "Running") == "0"
        assert page.find("#requests").text == "No request runs or waits."
        is_over = threading.Event()

        def load() -> None:
            while not is_over.is_set():
                server.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 60, "ignore_eos": True})

        threads = [threading.Thread(target=load) for _ in range(4)]
        for thread in threads:
            thread.start()
        try:
            page.until(lambda: page.find_all(".requests tbody tr"), "the requests")
            page.until(lambda: tile(page, "Running") != "0" and tile(page, "Output tokens/s") != "0", "figures")
            page.until(lambda: pixels(page) != idle, "blocks that are used")
            page.until(lambda: tile(page, "Prefix cache hits") not in ("-", "0%"), "hits")
            page.shoot("engine-load")
        finally:
            is_over.set()
            for thread in threads:
                thread.join()
        cached = page.until(lambda: int(page.find(".legend li:nth-child(2) b").text), "cached blocks")
        assert 0 < cached <= 96
        assert tile(page, "Restarts") == "0"
        os.kill(server.process_of("pagewire.engine_core"), signal.SIGKILL)
        page.until(lambda: tile(page, "Restarts") == "1", "the restart")
        assert page.complaints() == []


def test_it_says_what_keeps_requests_waiting(browser):
    said = {
        "sleep_level": "The engine sleeps; requests wait until it is woken.",
        "is_paused": "The engine is paused; requests wait until it goes on.",
    }
    with served_page() as served:
        page = PageDriver(browser, served.url + "/#engine")
        for state, words in said.items():
            served.core.answers["view"] = {**VIEW, "stats": {**VIEW["stats"], state: 1}}
            page.until(lambda words=words: page.find("#engine-status").text == words, words)
        assert page.find(".block-map").is_displayed()
        served.core.answers["view"] = None
        page.until(lambda: not page.find(".block-map").is_displayed(), "a picture without the core")
        assert "does not answer" in page.find("#cores .note").text


def test_a_server_that_stands_still_is_said_and_asked_anew(browser):
    with served_page() as served:
        page = PageDriver(browser, served.url + "/#engine")
        sooner = "const set = setTimeout; setTimeout = (call, ms) => set(call, ms === 8000 ? 1500 : ms)"
        with page.prepared(f"{{ {sooner} }}"):
            page.until(lambda: state_of(page) == "live", "the first picture")
            with served.standing_still():
                page.until(lambda: page.find("#engine-status").text == "The server is silent.", "that nothing comes")
            page.until(lambda: state_of(page) == "live", "the next picture")
